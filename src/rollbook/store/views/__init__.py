"""Views of a store for analysis: data frames, Arrow tables and SQL over its tables, with codes as words.

`store_view.py` says what a view needs of one store or of many; readers and collections get the methods of
`frame_methods.py`.
"""
