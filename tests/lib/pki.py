"""Certificates for tests, made by openssl."""

import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*argv):
    subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True, timeout=60)


class Authority:
    """An authority whose files are in a directory."""

    def __init__(self, directory, name):
        self.directory, self.name, self.issued = directory, name, 0
        self.file, self.key = directory / f"{name}.pem", directory / f"{name}.key"
        _openssl("req", "-x509", *KEY, "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.file, "-days", 2)

    def issue(self, name, names="", days=2):
        """Makes a certificate with its key; `names` are alternative ones such as `DNS:router.example`. Returns both files."""
        self.issued += 1
        base = self.directory / f"{self.name}-{self.issued}"
        file, key, request, extensions = (base.with_suffix(end) for end in (".pem", ".key", ".csr", ".ext"))
        subject = f"/CN={name}" if name else "/O=none"
        _openssl("req", *KEY, "-subj", subject, "-keyout", key, "-out", request)
        extensions.write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        _openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.key, "-CAcreateserial", "-days", days,
                 "-extfile", extensions, "-out", file)
        key.chmod(0o600)
        return file, key
