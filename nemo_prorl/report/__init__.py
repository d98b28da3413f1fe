"""`python -m nemo_prorl report`: what a run did, as one page that needs nothing else, and as pictures.

runs.py reads a folder; events.py and health.py say what happened and whether it is well; panels.py lists the charts;
drawings.py makes them of runs; charts.py and pictures.py hand them to Plotly and matplotlib; page.py puts it together.
"""
