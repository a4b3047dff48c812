//! `turnpike annotations`: the configuration language for editors, by lua-language-server.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use control::config::ANNOTATIONS;

/// The place of the annotations.
#[derive(Debug, Args)]
pub struct AnnotationsArgs {
    /// Write them into this directory, which contains configurations, with settings for lua-language-server
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// The library file.
const LIBRARY: &str = "turnpike.d.lua";

/// Its first line, by which an earlier version is known.
const MARK: &str = "---@meta turnpike\n";

/// The file with the language server's settings.
const SETTINGS: &str = ".luarc.json";

/// Contents of that file: a configuration has no other libraries.
const CONTENTS: &str = r#"{
  "runtime.version": "LuaJIT",
  "runtime.builtin": {
    "coroutine": "disable",
    "debug": "disable",
    "ffi": "disable",
    "io": "disable",
    "jit": "disable",
    "os": "disable"
  },
  "workspace.checkThirdParty": false,
  "workspace.library": ["turnpike.d.lua"]
}
"#;

/// Returns the annotations, or writes them and returns a message.
///
/// # Errors
/// A file cannot be written, or the library file's name is that of another file.
pub fn annotations(args: &AnnotationsArgs) -> Result<String> {
    match &args.directory {
        Some(directory) => write(directory),
        None => Ok(ANNOTATIONS.trim_end().to_owned()),
    }
}

fn write(directory: &Path) -> Result<String> {
    let (library, settings) = (directory.join(LIBRARY), directory.join(SETTINGS));
    remove_earlier(&library)?;
    create(&library, ANNOTATIONS)
        .with_context(|| format!("file {}: cannot be written", library.display()))?;
    let of_settings = match create(&settings, CONTENTS) {
        Ok(()) => "written",
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            "there already, left as it is; it needs \"runtime.version\": \"LuaJIT\" and \
             \"workspace.library\": [\"turnpike.d.lua\"]"
        }
        Err(error) => {
            let what = format!("file {}: cannot be written", settings.display());
            return Err(error).context(what);
        }
    };
    Ok(format!(
        "{}: written\n{}: {of_settings}\nopen {} in an editor with lua-language-server: VS Code with the extension \
         \"Lua\" (sumneko.lua), Neovim with lua_ls",
        library.display(),
        settings.display(),
        directory.display()
    ))
}

/// Removes the library file of an earlier version. Another file of its name is refused, and a link is not followed.
fn remove_earlier(library: &Path) -> Result<()> {
    let about = match library.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        about => about.with_context(|| format!("file {}", library.display()))?,
    };
    let is_own =
        about.is_file() && fs::read(library).is_ok_and(|text| text.starts_with(MARK.as_bytes()));
    if !is_own {
        bail!(
            "file {}: not written by this command; move it away, or name another directory",
            library.display()
        );
    }
    fs::remove_file(library)
        .with_context(|| format!("file {}: cannot be replaced", library.display()))
}

/// Writes a new file.
fn create(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn within(directory: &Path) -> Result<String> {
        annotations(&AnnotationsArgs { directory: Some(directory.to_owned()) })
    }

    #[test]
    fn both_files_are_written_and_settings_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (library, settings) = (directory.path().join(LIBRARY), directory.path().join(SETTINGS));
        let said = within(directory.path()).unwrap();
        assert!(said.contains("turnpike.d.lua: written\n"), "{said}");
        assert!(said.contains(".luarc.json: written\n"), "{said}");
        assert_eq!(fs::read_to_string(&library).unwrap(), ANNOTATIONS);
        let text = fs::read_to_string(&settings).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["workspace.library"], serde_json::json!([LIBRARY]));

        fs::write(&library, format!("{MARK}-- of an earlier version\n")).unwrap();
        fs::write(&settings, "{}").unwrap();
        let said = within(directory.path()).unwrap();
        assert!(said.contains(".luarc.json: there already, left as it is"), "{said}");
        assert_eq!(fs::read_to_string(&library).unwrap(), ANNOTATIONS);
        assert_eq!(fs::read_to_string(&settings).unwrap(), "{}");
    }

    #[test]
    fn files_of_others_are_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join(LIBRARY);
        fs::write(&library, "return {}").unwrap();
        let error = within(directory.path()).unwrap_err().to_string();
        assert!(error.contains("not written by this command; move it away"), "{error}");
        assert_eq!(fs::read_to_string(&library).unwrap(), "return {}");

        let other = directory.path().join("other");
        for text in ["return {}", MARK] {
            fs::write(&other, text).unwrap();
            fs::remove_file(&library).unwrap();
            symlink(&other, &library).unwrap();
            assert!(within(directory.path()).is_err());
            assert_eq!(fs::read_to_string(&other).unwrap(), text);
        }
        assert!(!directory.path().join(SETTINGS).exists());
    }

    #[test]
    fn they_are_printed_without_a_directory() {
        let printed = annotations(&AnnotationsArgs { directory: None }).unwrap();
        assert!(printed.starts_with(MARK) && printed.ends_with("return turnpike"));
    }
}
