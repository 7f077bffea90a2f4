//! Where inputs begin: golden vectors, inputs that once did harm, and the words of the protocol.
//!
//! The golden vectors and the words are read out of the sources that define them, so that there is no second list to
//! keep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The bytes of every vector in `crates/wire/tests/golden.rs`.
#[must_use]
pub fn golden() -> Vec<Vec<u8>> {
    literals(include_str!("../../crates/wire/tests/golden.rs"))
        .into_iter()
        .filter_map(|text| from_hex(&text))
        .filter(|bytes| !bytes.is_empty())
        .collect()
}

/// Every word in `crates/wire/src/names.rs`, and some that identifiers are made of.
#[must_use]
pub fn tokens() -> Vec<Vec<u8>> {
    let mut tokens = literals(include_str!("../../crates/wire/src/names.rs"));
    tokens.extend(
        ["127.0.0.1:9090", "[::1]:80", "[::ffff:1.2.3.4]", ":65535", "n001", "#1", "\u{e9}", "\u{85}"]
            .map(str::to_owned),
    );
    tokens.into_iter().map(String::into_bytes).collect()
}

/// The inputs in `fuzz/seeds/<target>`, in the order of their names.
///
/// # Errors
/// Those of the file system, and a file that is not hexadecimal.
pub fn kept(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let mut paths =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The input in the file at `path`: hexadecimal digits, and lines that begin with `#`.
///
/// # Errors
/// Those of the file system, and a file that is not hexadecimal.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let text = fs::read_to_string(path)?;
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    from_hex(&digits).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: not hexadecimal", path.display()))
    })
}

/// The bytes that hexadecimal digits stand for; spaces do not matter.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Hexadecimal digits for bytes.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The string literals of a source text that needs no real parser: no quotes outside of them, no raw strings.
fn literals(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    code.split('"').skip(1).step_by(2).map(|text| text.replace("\\\n", "").replace(' ', "")).collect()
}
