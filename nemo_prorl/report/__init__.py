"""`python -m nemo_prorl report`: one self-contained page about a run, and its charts as pictures.

runs.py reads a folder; events.py and health.py find what happened and whether it is well; panels.py lists the charts;
drawings.py builds them from runs; charts.py and pictures.py convert them for Plotly and matplotlib; page.py writes the
page.
"""
