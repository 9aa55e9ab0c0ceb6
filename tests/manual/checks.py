"""What scripts of comparisons share: running the command, and saying what holds."""

import subprocess


class Checks:
    def __init__(self, caravan):
        self.caravan = caravan
        self.has_failed = False

    def say(self, what, holds):
        self.has_failed |= not holds
        print(f"{what} {'holds' if holds else 'DOES NOT HOLD'}", flush=True)

    def run(self, *words):
        """The standard output of `caravan WORDS`; None if it fails, with its errors printed."""
        done = subprocess.run([self.caravan, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"caravan {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout if done.returncode == 0 else None
