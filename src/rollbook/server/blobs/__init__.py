"""The bytes of artifacts, on local disk or in S3, behind one interface. The routes of signed local URLs live here too.
A blob store knows no episodes and no database, so nothing here imports another sub-room."""
