"""Videos: inspecting them in a process of their own, and making copies that browsers can play. Nothing here knows the
HTTP routes."""
