"""Verifiable rewards as a service: text in, verdict out. Never torch, never the trainer.

protocol   what crosses the wire                      (imported by the trainer; standard library only)
client     submits responses, retries, never guesses  (imported by the trainer; standard library and aiohttp)
rows       what a label of another trainer's data set asks for       (standard library only)
adapters/  reward functions for other trainers, one file a trainer    (standard library and aiohttp)
server     the HTTP front; it never runs model text
frontends/ routes for other trainers' clients, one file a client
service    pools of killable workers behind the front, one bounded queue a domain
graders/   one file a way of grading, one line in its registry
sandbox/   where untrusted text is evaluated and untrusted programs run
"""
