"""What the deployment files say, for the tests that hold it against the product."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
