"""Grades programs. Pure functions of text, except grader.py, which has programs run in the sandbox.

grader          grades a response: chooses its program, runs it, compares the outputs
blocks          finds the code blocks of a response
program_choice  chooses the block that is the program
code_tests      how tests are read, and when an output is right
"""
