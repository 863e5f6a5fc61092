"""``python -m pagetide``."""

from pagetide.cli import main

main()
