"""Pure numbers, shared by the runner and the server: what an episode came to, what a run came to, ship or hold."""
