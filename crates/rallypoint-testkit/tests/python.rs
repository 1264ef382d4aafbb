//! Python programs have torch and python-etcd, can be talked to, and fail loudly.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rallypoint_testkit::{Etcd, Python, Version, run_python};

#[test]
fn torch_and_python_etcd_reach_a_server() {
    let etcd = Etcd::builder(Version::V35).v2().start();
    let script = "
import etcd, sys, torch
client = etcd.Client(host='127.0.0.1', port=int(sys.argv[1]))
client.write('/greeting', 'hello from ' + torch.__name__)
print(client.read('/greeting').value)
";
    assert_eq!(run_python(script, &[&etcd.port().to_string()]), "hello from torch\n");
}

#[test]
fn lines_go_back_and_forth() {
    let mut python = Python::spawn(
        "
import sys
print('ready')
for line in sys.stdin:
    print(line.strip().upper())
print('end')
",
        &[],
    );
    assert_eq!(python.read_line(), "ready");
    python.write_line("one");
    assert_eq!(python.read_line(), "ONE");
    assert_eq!(python.finish(), "end\n");
}

#[test]
fn a_failing_program_is_a_panic_with_its_error_output() {
    let panic = catch_unwind(|| run_python("raise ValueError('no such luck')", &[])).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("ValueError: no such luck"));

    let mut python = Python::spawn("raise SystemExit('gave up')", &[]);
    let panic = catch_unwind(AssertUnwindSafe(|| python.read_line())).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("gave up"));
}
