//! The engine: tries inputs, keeps what is new, and stops at the first that does harm.
//!
//! An input is new when some edge ran that never did before, or more often than it did for any input before. See
//! [`coverage::merge`].

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::coverage;
use crate::memory;
use crate::mutate::Mutator;
use crate::recorder::Recorder;

/// A function that must get along with any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// By which it is called for, and under which its seeds lie.
    pub name: &'static str,
    /// Reads the bytes, and panics when something does not hold.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How much memory an input may cost at the peak, in bytes per byte of the input; beyond [`MEMORY_BYTES_FREE`].
    pub memory_per_byte: usize,
}

impl Target {
    /// A target that may cost [`MEMORY_PER_BYTE`].
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self { name, run, seeds, memory_per_byte: MEMORY_PER_BYTE }
    }

    /// The same with another bound on memory.
    #[must_use]
    pub const fn with_memory_per_byte(mut self, bytes: usize) -> Self {
        self.memory_per_byte = bytes;
        self
    }

    /// Runs it on one input, and says what was wrong if anything was.
    ///
    /// # Errors
    /// In words: the panic, or the bound that was broken.
    pub fn try_input(&self, input: &[u8]) -> Result<(), String> {
        let started = Instant::now();
        let (peak, result) = memory::peak_during(|| {
            let result = catch(|| {
                coverage::start();
                (self.run)(input);
            });
            coverage::stop();
            result
        });
        result?;
        let allowed = self.memory_per_byte * input.len() + MEMORY_BYTES_FREE;
        if peak > allowed {
            return Err(format!("{} bytes cost {peak} bytes of memory, allowed are {allowed}", input.len()));
        }
        // A machine can be busy. Only what is slow every time is slow.
        let mut elapsed = started.elapsed();
        for _ in 0..2 {
            if elapsed > INPUT_TIME_MAX {
                let again = Instant::now();
                catch(|| (self.run)(input))?;
                elapsed = elapsed.min(again.elapsed());
            }
        }
        if elapsed > INPUT_TIME_MAX {
            return Err(format!("{} bytes took {elapsed:.1?}, allowed are {INPUT_TIME_MAX:?}", input.len()));
        }
        Ok(())
    }
}

/// An input that does harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The bytes.
    pub input: Vec<u8>,
    /// What they do.
    pub what: String,
}

/// Fuzzes one target.
///
/// [`seed`](Self::seed) once, then [`fuzz`](Self::fuzz). One seed of chance gives one sequence of inputs, as long as
/// the target itself leaves nothing to chance; a `HashMap` in it does.
#[derive(Debug)]
pub struct Fuzzer<'a> {
    target: Target,
    tokens: &'a [Vec<u8>],
    random: Rng,
    is_guided: bool,
    recorder: Option<Recorder>,
    corpus: Vec<Vec<u8>>,
    /// What each edge has reached.
    reached: Vec<u8>,
    executions: u64,
}

impl<'a> Fuzzer<'a> {
    /// A fuzzer that knows nothing yet.
    #[must_use]
    pub fn new(target: Target, tokens: &'a [Vec<u8>], seed: u64) -> Self {
        coverage::forget_comparisons();
        Self {
            target,
            tokens,
            random: Rng::with_seed(seed),
            is_guided: true,
            recorder: None,
            corpus: Vec::new(),
            reached: vec![0; coverage::edges()],
            executions: 0,
        }
    }

    /// The same without looking at what the target does, to see what guidance is worth.
    #[must_use]
    pub fn unguided(mut self) -> Self {
        self.is_guided = false;
        self
    }

    /// The same with a record of the latest input.
    #[must_use]
    pub fn recorded(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Tries the inputs to begin with, and an empty one.
    ///
    /// # Errors
    /// Those of writing the record.
    pub fn seed(&mut self, seeds: Vec<Vec<u8>>) -> io::Result<Option<Finding>> {
        for mut input in seeds.into_iter().chain([Vec::new()]) {
            input.truncate(INPUT_BYTES_MAX);
            match self.execute(&input)? {
                Ok(is_news) if is_news || !self.is_guided => self.corpus.push(input),
                Ok(_) => {}
                Err(what) => return self.minimise(Finding { input, what }).map(Some),
            }
        }
        Ok(None)
    }

    /// Tries new inputs while `goes_on` says so, given the number of executions; it is asked from time to time.
    ///
    /// # Errors
    /// Those of writing the record.
    pub fn fuzz(&mut self, goes_on: impl Fn(u64) -> bool) -> io::Result<Option<Finding>> {
        while goes_on(self.executions) {
            for _ in 0..EXECUTIONS_BETWEEN_QUESTIONS {
                let input = self.next_input();
                match self.execute(&input)? {
                    Ok(true) if self.is_guided => self.corpus.push(input),
                    Ok(_) => {}
                    Err(what) => return self.minimise(Finding { input, what }).map(Some),
                }
            }
        }
        Ok(None)
    }

    /// How many inputs were tried.
    #[must_use]
    pub const fn executions(&self) -> u64 {
        self.executions
    }

    /// How many edges ran.
    #[must_use]
    pub fn edges(&self) -> usize {
        self.reached.iter().filter(|ranks| **ranks != 0).count()
    }

    /// The inputs that were kept.
    #[must_use]
    pub fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pick().to_vec();
        let other = self.pick().to_vec();
        let mutator =
            Mutator { tokens: self.tokens, bytes_max: INPUT_BYTES_MAX, uses_comparisons: self.is_guided };
        mutator.mutate(&mut input, &other, &mut self.random);
        input
    }

    /// Mostly the shorter one of two, because short inputs are quick to run; often a late one, because it is farthest in.
    fn pick(&mut self) -> &[u8] {
        if self.corpus.is_empty() {
            return &[];
        }
        let length = self.corpus.len();
        let oldest = if self.random.bool() { length - length.div_ceil(4) } else { 0 };
        let [one, two] = [(); 2].map(|()| self.random.usize(oldest..length));
        let prefers_short = self.random.u8(..4) > 0;
        let chosen = if prefers_short && self.corpus[two].len() < self.corpus[one].len() { two } else { one };
        &self.corpus[chosen]
    }

    /// Whether the input reached anything new, or what harm it did.
    fn execute(&mut self, input: &[u8]) -> io::Result<Result<bool, String>> {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(input)?;
        }
        self.executions += 1;
        let result = self.target.try_input(input);
        Ok(result.map(|()| coverage::merge(&mut self.reached)))
    }

    /// Leaves out what is not needed to do the harm. The record ends with the result.
    fn minimise(&mut self, mut finding: Finding) -> io::Result<Finding> {
        let started = Instant::now();
        let mut length = finding.input.len().div_ceil(2);
        while length > 0 && started.elapsed() < MINIMISE_TIME_MAX {
            let mut at = 0;
            while at < finding.input.len() && started.elapsed() < MINIMISE_TIME_MAX {
                let mut shorter = finding.input.clone();
                shorter.drain(at..(at + length).min(finding.input.len()));
                match self.execute(&shorter)? {
                    Err(what) => finding = Finding { input: shorter, what },
                    Ok(_) => at += length,
                }
            }
            length /= 2;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&finding.input)?;
        }
        Ok(finding)
    }
}

/// Runs `action` and turns its panic into words. Nothing is printed.
fn catch(action: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let inherited = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if CATCHING.get() {
                WORDS.set(panic.to_string().replace('\n', " "));
            } else {
                inherited(panic);
            }
        }));
    });
    CATCHING.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(action));
    CATCHING.set(false);
    result.map_err(|_| WORDS.take())
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static WORDS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Longest input, in bytes.
pub const INPUT_BYTES_MAX: usize = 64 << 10;
/// Most memory that an input may cost at the peak, in bytes per byte of it. A header of six bytes, envelope and all,
/// becomes a node of a map and an envelope with 632 bytes in a list that may just be growing: 136 bytes per byte.
pub const MEMORY_PER_BYTE: usize = 160;
/// How much any input may cost, in bytes.
pub const MEMORY_BYTES_FREE: usize = 64 << 10;
/// Longest time that an input may take.
pub const INPUT_TIME_MAX: Duration = Duration::from_secs(1);
const MINIMISE_TIME_MAX: Duration = Duration::from_secs(3);
const EXECUTIONS_BETWEEN_QUESTIONS: usize = 64;
