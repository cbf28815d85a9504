"""Print the ten longest functions below a folder: a report, not a gate, so that growth is seen."""

import ast
import sys
from pathlib import Path

MOST = 10


def main(folder: str) -> None:
    rows: list[tuple[int, str]] = []
    for path in sorted(Path(folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                rows.append((lines, f"{path}:{node.lineno} {node.name}"))
    print("the longest functions, in lines:")
    for lines, where in sorted(rows, reverse=True)[:MOST]:
        print(f"{lines:5d}  {where}")


if __name__ == "__main__":
    main(sys.argv[1])
