"""The characters that prompts and answers are drawn from: printable ASCII and the line break."""

ALPHABET = "".join(chr(code) for code in range(0x20, 0x7F)) + "\n"
