"""Verifiable rewards as a service: a response and its task in, a score out. Imports neither torch nor the trainer.

protocol   requests and results as they are sent               (imported by the trainer; standard library only)
client     submits responses, retries, never makes up a score  (imported by the trainer; also needs aiohttp)
servers    which servers there are, and which of them take requests   (used by the client)
rows       turns labels of other trainers' data sets into tasks     (standard library only)
adapters/  reward functions for other trainers, one file per trainer    (standard library and aiohttp)
server     the HTTP server; it never runs model text
frontends  routes for other trainers' clients
service    pools of killable workers, each behind a bounded queue; answers says what becomes of a request
worker     a grading process; judge is its twin for programs, which it has run in the sandbox
graders/   one file per way of grading, one line each in the registry; code/ for programs
sandbox/   where untrusted text is evaluated and untrusted programs run
"""
