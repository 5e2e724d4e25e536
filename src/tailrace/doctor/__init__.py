"""What `tailrace doctor` finds out about this machine, this installation and a model file. See docs/doctor.md.

Looks and measures; changes nothing. Everything it looks at is handed in (`machine.Machine`), so tests own it.
"""
