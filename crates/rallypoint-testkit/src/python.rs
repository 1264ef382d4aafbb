//! Python programs that run PyTorch's own code.

use crate::{Program, tools};

/// A running Python program, with torch and python-etcd to import. Dropped, it is killed.
#[derive(Debug)]
pub struct Python(Program);

/// Runs a Python program to its end; what it printed. A failure is a panic with its error output.
#[must_use]
pub fn run_python(script: &str, args: &[&str]) -> String {
    Python::spawn(script, args).finish()
}

impl Python {
    /// Starts a program given as text; `args` are its `sys.argv[1:]`.
    #[must_use]
    pub fn spawn(script: &str, args: &[&str]) -> Self {
        // Lines must arrive as they are printed.
        let args = [&["-u", "-c", script], args].concat();
        Python(Program::start(&tools::torch_python(), &args, &[]))
    }

    /// The next line it prints.
    #[must_use]
    pub fn read_line(&mut self) -> String {
        self.0.read_line()
    }

    /// Gives it a line to read from its standard input.
    pub fn write_line(&mut self, line: &str) {
        self.0.write_line(line);
    }

    /// Closes its standard input and waits for its end; what it printed and nobody read yet.
    #[must_use]
    pub fn finish(self) -> String {
        self.0.finish()
    }
}
