//! The files of the dashboard (`crates/web/dashboard`), as part of the binary.
//!
//! They are few and known, so this list embeds them: a crate that walks a directory would add a macro and a search at run
//! time for the same. Browsers load the modules as they are; nothing is built.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A file.
#[derive(Debug)]
pub struct File {
    /// Its path in URLs.
    pub path: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

impl File {
    /// Returns its validator, the value of `ETag`.
    pub fn tag(&self) -> String {
        // The same in all runs of a binary, which is as long as it has these files.
        let mut hasher = DefaultHasher::new();
        self.bytes.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal = $file:literal: $kind:ident,)*) => {
        &[$(File { path: $path, kind: $kind, bytes: include_bytes!(concat!("../dashboard/", $file)) }),*]
    };
}

/// All files.
pub const FILES: &[File] = files! {
    "/" = "index.html": HTML,
    "/style.css" = "style.css": STYLE,
    "/icon.svg" = "icon.svg": IMAGE,
    "/app.js" = "app.js": SCRIPT,
    "/client.js" = "client.js": SCRIPT,
    "/elements.js" = "elements.js": SCRIPT,
    "/text.js" = "text.js": SCRIPT,
    "/table.js" = "table.js": SCRIPT,
    "/rates.js" = "rates.js": SCRIPT,
    "/layout.js" = "layout.js": SCRIPT,
    "/lines.js" = "lines.js": SCRIPT,
    "/pages/overview.js" = "pages/overview.js": SCRIPT,
    "/pages/graph.js" = "pages/graph.js": SCRIPT,
    "/pages/interfaces.js" = "pages/interfaces.js": SCRIPT,
    "/pages/routes.js" = "pages/routes.js": SCRIPT,
    "/pages/neighbours.js" = "pages/neighbours.js": SCRIPT,
    "/pages/filters.js" = "pages/filters.js": SCRIPT,
    "/pages/forwarders.js" = "pages/forwarders.js": SCRIPT,
    "/pages/history.js" = "pages/history.js": SCRIPT,
    "/pages/trace.js" = "pages/trace.js": SCRIPT,
    "/pages/capture.js" = "pages/capture.js": SCRIPT,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn within(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { within(&path) } else { vec![path] }).collect()
    }

    /// Apart from those that only the checker of types reads.
    #[test]
    fn every_file_is_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
        let served = |path: PathBuf| match path.strip_prefix(&root).unwrap().to_str().unwrap() {
            "index.html" => Some("/".to_owned()),
            "types.d.ts" | "jsconfig.json" => None,
            file => Some(format!("/{file}")),
        };
        let files: BTreeSet<String> = within(&root).into_iter().filter_map(served).collect();
        assert_eq!(files, FILES.iter().map(|file| file.path.to_owned()).collect());
    }

    #[test]
    fn files_differ_in_their_tags() {
        let tags: BTreeSet<_> = FILES.iter().map(File::tag).collect();
        assert_eq!(tags.len(), FILES.len());
    }
}
