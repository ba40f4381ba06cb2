//! Tripwires on output as tools print it, and on text that only resembles it.

use super::*;

fn fired(text: &str) -> Option<Tripwire> {
    match route(&router("", &[]), None, text).why {
        Why::Rule { name, .. } => Some(name),
        _ => None,
    }
}

#[test]
fn reports_of_tools_are_recognised() {
    use Tripwire::*;
    for (text, tripwire) in [
        ("SUMMARY: AddressSanitizer: heap-buffer-overflow a.cpp:5 in sum(int*)", SanitizerReport),
        ("a.cpp:7:12: runtime error: signed integer overflow: 2147483647 + 1", SanitizerReport),
        ("WARNING: ThreadSanitizer: data race (pid=12)\n  Write of size 4", SanitizerReport),
        (
            "Program received signal SIGSEGV, Segmentation fault.\n0x1 in f () at a.cpp:1",
            StackTrace,
        ),
        ("#0  0x0000555 in f () at a.cpp:2\n#1  0x0000556 in main () at a.cpp:9", StackTrace),
        ("terminate called after throwing an instance of 'std::bad_alloc'", StackTrace),
        (
            "==9== Conditional jump or move depends on uninitialised value(s)\n==9==    at 0x1: f (a.cpp:3)",
            StackTrace,
        ),
        ("app: a.cpp:3: void f(): Assertion `n > 0' failed.", AssertionFailure),
        ("a_test.cc:4: Failure\nExpected equality of these values:\n  1\n  2", AssertionFailure),
        (
            "a.cpp: In instantiation of 'struct S<int>':\na.cpp:9:8:   required from here\na.cpp:3:5: error: x",
            TemplateBacktrace,
        ),
        (
            "a.cpp:2:1: note: candidate template ignored: substitution failure [with T = int]",
            TemplateBacktrace,
        ),
        (
            "/usr/bin/ld: a.o: in function `main':\na.cpp:(.text+0x5): undefined reference to `f()'",
            LinkerError,
        ),
        ("main.obj : error LNK2019: unresolved external symbol", LinkerError),
        ("CMake Error at CMakeLists.txt:3 (find_package):", BuildError),
        ("a.cpp:1:10: fatal error: zlib.h: No such file or directory", BuildError),
        ("make: *** No rule to make target 'all'.  Stop.", BuildError),
        ("a.cpp:3:5: error: expected ';' before 'return'", CompilerError),
        ("a.cpp(12): error C2065: 'x': undeclared identifier", CompilerError),
    ] {
        assert_eq!(fired(text), Some(tripwire), "{text}");
    }
}

#[test]
fn a_failed_compilation_is_not_a_broken_build_because_make_says_so() {
    let text =
        "a.cpp:3:5: error: 'x' was not declared in this scope\nmake: *** [Makefile:2: a.o] Error 1";
    assert_eq!(fired(text), Some(Tripwire::CompilerError));
}

#[test]
fn text_that_names_a_tool_is_no_report() {
    for text in [
        "How do I enable AddressSanitizer for one target only?",
        "Write an assertion for this, and print an error if it fails.",
        "My graph has three nodes.",
        "#1 priority: the undefined behaviour of our team meetings",
        "",
        "Who was the first person to receive a signal from space?",
    ] {
        assert_eq!(fired(text), None, "{text}");
    }
}

#[test]
fn a_snippet_that_is_a_build_file_by_its_name_counts_for_the_build() {
    let router = router("", &[]);
    let lane = |name: &str| {
        let file =
            Part { kind: PartKind::Snippet, text: "project(demo)\nset(x 1)\n", name: Some(name) };
        router
            .route(&RouteInput { intent: None, parts: &[file, Part::user("What is missing?")] })
            .primary
    };
    for name in
        ["CMakeLists.txt", "src/net/BUILD.bazel", "cmake\\FindX.cmake", "meson.build", "a/Makefile"]
    {
        assert_eq!(lane(name).as_deref(), Some("build"), "{name}");
    }
    for name in ["src/build.cpp", "CMakeLists.txt.md", "BUILDING"] {
        assert_eq!(lane(name), None, "{name}");
    }
}

#[test]
fn the_evidence_names_what_was_found() {
    let route = route(&router("", &[]), None, LOCKS);
    let Why::Rule { evidence, .. } = &route.why else { panic!("{}", route.why) };
    assert!(evidence.contains("mutex x2") && evidence.contains("lock_guard"), "{evidence}");
}
