//! What the benchmarks share: processes of both languages, and a count of allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts allocations, as Go's runtime does by itself.
pub(crate) struct Counting;

pub(crate) static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A server that ends with this value, because its standard input does.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
    _output: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Result<Self, Failure> {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut output = BufReader::new(process.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let address = ready["address"].as_str().ok_or("the server did not say where it is")?.to_owned();
        Ok(Self { process, address, _output: output })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Builds a command of the Go side, if there is Go.
pub(crate) fn build_go(command: &str) -> Result<Option<PathBuf>, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/go");
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        writeln!(std::io::stderr(), "Go is not installed: there is nothing to compare with")?;
        return Ok(None);
    }
    let program = std::env::temp_dir().join(format!("synod-go-{command}-{}", std::process::id()));
    let built = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(format!("./cmd/{command}"))
        .current_dir(source)
        .status()?;
    if !built.success() {
        return Err("the Go side could not be built".into());
    }
    Ok(Some(program))
}
