"""The pictures of the dashboard, for scripts/screenshots: two runs of 64 nodes, one of which lacks a node."""

from __future__ import annotations

import pathlib
import sys

from dashboard import TOKEN, Dashboard, Records, chromium
from playwright.sync_api import sync_playwright
from support import Cluster, wait_until

NAMES = [f"gpu-{number:03}" for number in range(64)]
ABSENT = 17
# A picture that is larger has too much in it.
MOST_BYTES = 200_000
TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 187, in main
    loss = step(model, batch)
  File "/workspace/train.py", line 96, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."""


def place(rank: int) -> dict[str, str]:
    return {"rack": f"r{rank // 8}", "address": f"10.0.0.{rank + 1}", "host": f"node-{rank:03}.cluster", "about": "8 x H100, driver 570.86"}


def forming(cluster: Cluster) -> Records:
    """63 of 64 are there."""
    run = Records(cluster, "llama-70b", 64)
    for rank, name in enumerate(NAMES):
        if rank != ABSENT:
            run.node(name, **place(rank))
    run.round(0, 0, NAMES[0])
    run.write()
    return run


def meeting_again(cluster: Cluster) -> Records:
    """Ninety minutes with a failure and two deaths, the last of which is ten seconds old."""
    run = Records(cluster, "mixtral-8x22b", 64)
    dead = [{"node": NAMES[ABSENT], "rank": ABSENT, "why": "died"}]
    for rank, name in enumerate(NAMES):
        run.node(name, rank, 4, "stay" if rank % 3 else "join", **place(rank))
    run.node("gpu-064", **place(64))
    run.node("gpu-065", **place(65))
    run.round(4, 64, NAMES[0], NAMES[3], news={"lost": dead, "lost_count": 1})
    master = {"node": NAMES[0], "address": "10.0.0.1", "port": 29400}
    quick = {"world_size": 64, "gathering_ms": 2_000, "last_call_ms": 300, "master": master}
    failure = {"rank": 357, "local_rank": 5, "host": "gpu-044", "exit": "exit code 1"}
    earlier = [{"node": "gpu-031", "rank": 31, "why": "died"}]
    run.event("formed", 1, 5400, **{**quick, "gathering_ms": 48_000, "last_call_ms": 5_000})
    run.event("working", 1, 5398)
    run.event("failed", 1, 3100, by="gpu-044", **failure, message="CUDA out of memory", traceback=TRACEBACK)
    run.event("stopped", 1, 3098, why="rank 357 on gpu-044 failed with exit code 1")
    run.event("formed", 2, 3090, **quick)
    run.event("working", 2, 3085)
    run.event("lost", 2, 1700, lost=earlier, count=1, within_ms=5000)
    run.event("stopped", 2, 1699, why="node 31 (gpu-031) died")
    run.event("formed", 3, 1655, **quick, gone=earlier, joined=[{"node": "gpu-066", "rank": 31}])
    run.event("working", 3, 1650)
    run.event("lost", 3, 900, lost=[{"node": "gpu-066", "rank": 31, "why": "left"}], count=1)
    run.event("formed", 4, 890, **quick, joined=[{"node": "gpu-031", "rank": 31}])
    run.event("working", 4, 885)
    run.delete(f"node/{NAMES[ABSENT]}")
    run.event("lost", 4, 10, lost=dead, count=1, within_ms=5000)
    return run


def main(folder: pathlib.Path) -> None:
    cluster = Cluster(1)
    waits, again = forming(cluster), meeting_again(cluster)
    dashboard = Dashboard(cluster.endpoint, token=TOKEN)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for name, run, scheme, width, height in [
            ("dashboard-dark", again.run, "dark", 1280, 1180),
            ("dashboard-missing", waits.run, "light", 1280, 860),
            ("dashboard-phone", again.run, "dark", 360, 900),
        ]:
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": height}, "timezone_id": "UTC"}
            page = browser.new_context(**options).new_page()
            page.goto(dashboard.page(run))
            wait_until("it is drawn", lambda page=page: page.locator(".cell").count() >= 64)
            # The traceback of an older failure is folded, to leave room for the rest.
            for opened in page.locator("details[open] summary").all():
                opened.click()
            page.locator(".cell").nth(3).click()
            page.mouse.move(0, 0)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=folder / f"{name}.png")
            size = (folder / f"{name}.png").stat().st_size
            print(f"{name}.png: {size} bytes")
            if size > MOST_BYTES:
                sys.exit(f"{name}.png is too large: {size} bytes, and may have {MOST_BYTES}")
        browser.close()
    dashboard.stop()
    cluster.stop()


main(pathlib.Path(sys.argv[1]))
