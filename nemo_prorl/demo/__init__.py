"""The demo: its puzzles and base policy (`build`), the run (`run`), and what it changed (`levels`, `picture`)."""
