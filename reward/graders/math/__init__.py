"""Mathematics and STEM: one reading of an answer (`reading`), one comparison (`compare`).

A box and its gold are each read once, as a value with a type (`values`). What cannot be read whole is unreadable, and
never half read. The gold's type says what an equal answer is, and each way to be equal is a rule (`rules`).
"""
