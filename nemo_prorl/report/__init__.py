"""`python -m nemo_prorl report`: one self-contained page about a run, and its charts as pictures.

run_folder/run.py reads a folder; health.py finds whether the run is well; panels.yaml lists the charts; drawings.py
builds them from runs; charts.py and pictures.py convert them for Plotly and matplotlib; page.py writes the page.
"""
