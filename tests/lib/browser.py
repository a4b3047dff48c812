"""A browser without a screen, and the tunnel by which it comes to a router."""

import contextlib
import socket
import subprocess
import tempfile

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from .netns import stop_process, wait_for

# The work of `ssh -L PORT:TARGET` on the router's side: each connection to the listener becomes one to the target, by a
# process of the user. The listener is that of the test's own namespace.
RELAY = """
import socket, sys, threading
listener, target = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]

def connect():
    if target.startswith("/"):
        there = socket.socket(socket.AF_UNIX)
        there.connect(target)
        return there
    return socket.create_connection(("127.0.0.1", int(target)))

def pump(source, sink):
    try:
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
    except OSError:
        pass
    # A browser that has gone is gone in both directions.
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def serve(here):
    try:
        there = connect()
    except OSError:
        return here.close()
    for ends in ((here, there), (there, here)):
        threading.Thread(target=pump, args=ends, daemon=True).start()

while True:
    serve(listener.accept()[0])
"""


class Tunnel:
    """A port of this machine that leads to a Unix socket, or to a port within a namespace, as a user and a group."""

    def __init__(self, target, namespace=None, user=None, group=None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        fd = self._listener.fileno()
        argv = ["/usr/bin/python3", "-c", RELAY, str(fd), str(target)]
        if user is not None:
            argv = ["setpriv", f"--reuid={user}", f"--regid={group or user}", "--clear-groups", *argv]
        if namespace is not None:
            argv = namespace.command(*argv)
        self._process = subprocess.Popen(argv, pass_fds=[fd])

    @property
    def url(self):
        """The address of the dashboard."""
        return f"http://localhost:{self.port}/"

    def close(self):
        """Ends it, with all of its connections."""
        stop_process(self._process)
        self._listener.close()


class Browser:
    """Chromium, by its driver. It keeps nothing, and asks nobody but the pages' hosts."""

    # Pages ask once a second or less often; a machine that is busy takes its time.
    PATIENCE_S = 30

    def __init__(self, names=()):
        self._profile = tempfile.TemporaryDirectory(prefix="turnpike-browser-")
        options = ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-default-apps", "--no-first-run", "--hide-scrollbars",
            f"--user-data-dir={self._profile.name}/profile", "--window-size=1400,900",
            # Names that lead to this machine, as those of a name server that an attacker has.
            f"--host-resolver-rules={','.join(f'MAP {name} 127.0.0.1' for name in names)}",
        ):
            options.add_argument(argument)
        options.add_experimental_option("prefs", {"download.default_directory": self.downloads})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options, Service("/usr/bin/chromedriver"))
        self.driver.set_script_timeout(self.PATIENCE_S)

    @property
    def downloads(self):
        """The folder of downloaded files."""
        return f"{self._profile.name}/downloads"

    def close(self):
        """Ends it."""
        self.driver.quit()
        self._profile.cleanup()

    def open(self, url):
        """Goes to an address."""
        self.driver.get(url)

    def run(self, script, *arguments):
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, what=""):
        """Waits until a condition holds, and returns its value."""
        value = None

        def holds():
            nonlocal value
            # The page may replace an element between two questions about it.
            with contextlib.suppress(Exception):
                value = condition()
            return value

        assert wait_for(holds, self.PATIENCE_S), f"{what}: {self.text('body')}\n{self.log()}"
        return value

    def all(self, selector):
        """The elements that a selector of CSS finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        """The element that a selector finds, once it is there."""
        return self.wait(lambda: self.all(selector)[:1], selector)[0]

    def text(self, selector="main"):
        """The visible text of an element; empty if there is none."""
        found = self.all(selector)
        return found[0].text if found else ""

    def shows(self, text, selector="body"):
        """Waits until an element shows a text."""
        self.wait(lambda: text in self.text(selector), f'"{text}" in {selector}')

    def click(self, text, selector="button, a"):
        """Clicks the visible button or link of this text."""
        def click():
            found = [one for one in self.all(selector) if one.text == text and one.is_displayed() and one.is_enabled()]
            found[0].click()
            return True

        self.wait(click, f'button "{text}"')

    def fill(self, selector, text):
        """Types a text into a field."""
        field = self.one(selector)
        field.clear()
        field.send_keys(text)
        return field

    def rows(self, caption):
        """The rows of a table, as a dictionary from column to text each."""
        return self.run("""
            const table = [...document.querySelectorAll("table")].find((one) => one.caption.textContent === arguments[0]);
            if (!table) return [];
            const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
            const rows = [...table.tBodies[0].rows].filter((row) => row.cells.length === heads.length);
            return rows.map((row) => Object.fromEntries([...row.cells].map((cell, at) => [heads[at] + (heads.indexOf(heads[at]) < at ? " bits" : ""), cell.innerText])));
        """, caption)

    def page(self, name):
        """Goes to a page of the dashboard without loading it anew."""
        self.run("location.hash = arguments[0]", f"#/{name}")

    def log(self):
        """Messages of the console since the last call: errors of scripts, of loading, and violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def size(self, width, height):
        """Makes the page so large."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def prefers(self, colours):
        """Lets the machine prefer light or dark colours."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": colours}]})

    def download(self, folder):
        """Lets files be downloaded into a folder."""
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
