"""A worker that waits: it ends when a file is there, and fails if that says so."""

import pathlib
import sys
import time

told = pathlib.Path(sys.argv[1])
while not told.exists():
    time.sleep(0.05)
word = told.read_text()
if word == "fail":
    told.unlink()
    raise RuntimeError("the loss is <b>not a number</b>")
