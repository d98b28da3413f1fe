"""Grades programs. Pure functions of text, except grader.py, which has programs run in the sandbox.

grader          grades a response: chooses its program, runs it, compares the outputs
blocks          finds the code blocks of a response
program_choice  chooses the block that is the program
code_tests      tests with inputs and outputs: how they are read, and when an output is right
check_program   tests that are a program, such as HumanEval's `check(candidate)`
crossing        carries values between the cells of such a test program and of the submission
stand_in        stands in for the submission where the test program runs
"""
