//! The patterns of the tripwires, as a table.
//!
//! A pattern is a word, or a word in braces with the text that must stand directly before and after it: `{undefined}
//! reference to`. `%` before the word is any digit. A word that ends with `_*` is a prefix: `CMAKE_*`. Case matters,
//! because it tells `Aborted` from prose and `BFS` from a word.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::tripwire::Tripwire;

/// The lexicon of all tripwires.
pub(super) static LEXICON: LazyLock<Lexicon> = LazyLock::new(Lexicon::new);

use Tripwire::*;

/// (tripwire, weight of each pattern, patterns separated by `|`).
const TABLE: &[(Tripwire, f32, &str)] = &[
    (
        SanitizerReport,
        2.0,
        "{AddressSanitizer}:|{ThreadSanitizer}:|{LeakSanitizer}:|{MemorySanitizer}:|{UndefinedBehaviorSanitizer}:|\
        %: {runtime} error: |{heap}-use-after-free|{heap}-buffer-overflow|{stack}-buffer-overflow|\
        {stack}-use-after-return|{alloc}-dealloc-mismatch|{lock}-order-inversion (",
    ),
    (
        StackTrace,
        2.0,
        "Program {received} signal|{terminate} called |{Conditional} jump or move depends|{Invalid} read of size|\
        {Invalid} write of size|{Invalid} free()|{Use} of uninitialised value of size|Thread debugging {using} lib|\
        (core {dumped})",
    ),
    (
        StackTrace,
        1.0,
        "({gdb})|{Segmentation} fault|{definitely} lost:|{Aborted}|{what}():|signal {SIGSEGV}|signal {SIGABRT}|#frame",
    ),
    (
        AssertionFailure,
        2.0,
        "{Assertion} `|{Assertion} failed|{Assertion} failure|{Expected} equality of these values|[  {FAILED}  ]|\
        {assertion} failed:|{Failure}\n|{check} failed:|test case \"{has} failed",
    ),
    (
        TemplateBacktrace,
        1.0,
        ":   {required} from |:   {required} by substitution|In {instantiation} of |in {instantiation} of |\
        template argument {deduction}/substitution failed|{substitution} failure|\
        couldn't {deduce} template parameter",
    ),
    (
        TemplateBacktrace,
        2.0,
        "{candidate} template ignored|{constraints} not satisfied|{required} by the constraints of|\
        associated {constraints} are not satisfied|template instantiation {depth} exceeds|\
        {substitution} failure [with",
    ),
    (
        LinkerError,
        2.0,
        "{undefined} reference to|{undefined} symbol: |{multiple} definition of|{duplicate} symbol|{cannot} find -l|\
        {unable} to find library -l|{LNK2019}|{LNK2001}|{LNK2005}|{LNK1120}|{LNK1104}|{unresolved} external symbol|\
        {Undefined} symbols for architecture|{relocation} R_|{DSO} missing from command line|ld {returned} 1 exit|\
        {ld}: cannot find|ld {returned}",
    ),
    (
        BuildError,
        2.0,
        "{CMake} Error|{ninja}: error|{ninja}: build stopped|{No} rule to make target|\
        .h: {No} such file or directory|.hpp: {No} such file or directory|{configure}: error:|{Could} NOT find |\
        {Could} not find a package|{Package} requirements (|No {package} '|{ERROR}: Analysis of target|\
        no such {target} '|{no} such package '|meson.build:%: {ERROR}|{ERROR}: Dependency |{ERROR}: Missing |\
        {missing} separator|{ERROR}: Error in |{error}: linker command failed|{by} not providing \"Find",
    ),
    (
        BuildError,
        1.0,
        "{make}: ***|{gmake}: ***|]: {Error} 1|{Missing} variable is:|{recipe} for target",
    ),
    (
        CompilerError,
        2.0,
        "%: {error}: |%: fatal {error}: |{error} C%|): {error} C|{error}: expected |{error}: no matching |\
        {error}: invalid |{error}: cannot |{error}: '|{error}: use of |{error}: no member ",
    ),
    // Words of build files and of questions about builds.
    (
        BuildFile,
        2.0,
        "{add_library}|{add_executable}|{target_link_libraries}|{target_include_directories}|{find_package}|\
        {cmake_minimum_required}|{FetchContent}|{FetchContent_Declare}|{CMakeLists}|{PKG_CHECK_MODULES}|\
        {cc_library}|{cc_binary}|{cc_test}|{declare_dependency}|{conanfile}|{vcpkg}|{bazel}|{Bazel}|{CMake}|{cmake}|\
        {Meson}|{meson}|{Makefile}|{ninja}|{conan}|{pkg}-config|{add_subdirectory}|{target_compile_definitions}|\
        {set_target_properties}|{target_compile_options}|{target_sources}|{add_custom_command}|{CMAKE_*}|{add_test}|\
        {pkgconfig}|{linker} script|{toolchain} file|{get_option}|{include_directories}|{configure_file}|\
        {bin_PROGRAMS}|{lib_LTLIBRARIES}|{AM_*}|{AC_*}|{EXTRA_DIST}|{compile_commands}",
    ),
    (
        BuildFile,
        1.0,
        "{CXXFLAGS}|{LDFLAGS}|{CFLAGS}|{LDADD}|{CPPFLAGS}|{LIBADD}|{SUBDIRS}|.{PHONY}|$({CC})|$({CXX})|{endif}(|\
        {endforeach}(|{endmacro}(|{endfunction}(|{elseif}(|{list}(APPEND|{message}(|{install}(|{visibility} = |\
        {srcs} = |{hdrs} = |{deps} = |{dependency}(|{executable}(|{subdir}(|{PUBLIC}|{INTERFACE}|{linker}|{sysroot}|\
        {makefile}|{ccache}|{autoconf}|{automake}|{libtool}|{patsubst}|{wildcard}|{SHARED}|{REQUIRED}|\
        {cross} compil|{find_library}|{foreach}(|{incremental} build|{alias} |{lib} |{exe} |{requirements}",
    ),
    (
        TemplateCode,
        2.0,
        "{SFINAE}|{CRTP}|{enable_if}|{enable_if_t}|{void_t}|{typename}...|{typename}... |{metaprogramming}|\
        {make_index_sequence}|{index_sequence}|{index_sequence_for}|{integral_constant}|{true_type}|{false_type}|\
        {declval}|{conditional_t}|{is_detected}|parameter {pack}|partial {specialization}|partial {specialisation}|\
        fold {expression}|{variadic}|type {trait}|type {traits}|{type_traits}|expression {templates}|tag {dispatch}|\
        template {parameter}|{consteval}|{bool_constant}|{mpl}|non-{type} template|deduction {guide}",
    ),
    (
        TemplateCode,
        1.0,
        "{template}<|{template} <|{typename}|{class}... |{decltype}|{sizeof}...|{requires}|{concept}|{concepts}|\
        {conditional}|{is_same}|{is_same_v}|{is_*}|{has_*}|{constexpr}|{remove_cvref_t}|{decay_t}|{Ts}...|{Args}...|\
        {deduce}|{deduction}|{specialization}|{specialise}|{overload} set|{instantiation}|{metafunction}|\
        {static_assert}|{nullary}|{arity}|{declspec}",
    ),
    (
        ConcurrencyCode,
        2.0,
        "{mutex}|{lock_guard}|{unique_lock}|{scoped_lock}|{condition_variable}|{shared_mutex}|{shared_lock}|\
        {call_once}|{memory_order}|{memory_order_*}|{compare_exchange_*}|{compare_exchange_weak}|\
        {compare_exchange_strong}|{fetch_add}|{fetch_sub}|{pthread_*}|{deadlock}|{deadlocks}|data {race}|\
        race {condition}|{coroutine}|{coroutines}|{co_await}|{co_yield}|{co_return}|{lock}-free|{wait}-free|\
        {lockfree}|{jthread}|{stop_token}|thread {pool}|{thread}-safe|{thread} safe|{spinlock}|{semaphore}|\
        {notify_one}|{notify_all}|{work}-stealing|{work} stealing|false {sharing}|{seq_cst}|{mutexes}|\
        condition {variable}|{promise_type}|{coroutine_handle}|{thread_local}|hazard {pointer}|{packaged_task}|\
        checked {locking}",
    ),
    (
        ConcurrencyCode,
        1.0,
        "{atomic}|{atomics}|{atomically}|{thread}|{threads}|std::{async}|{future}|{promise}|{fiber}|{fibers}|\
        {barrier}|{latch}|{unlock}|{try_lock}|{concurrent}|{concurrency}|{concurrently}|{producer}|{producers}|\
        {consumer}|{consumers}|{executor}|{strand}|{fence}|{acquire}|{synchronization}|{parallel}|{this_thread}|\
        .{join}()|{waiters}|{readers}|{writers}|{contention}|{preempt}|{hardware_concurrency}|{cas}|{CAS}",
    ),
    (
        MemoryCode,
        2.0,
        "{RAII}|memory {leak}|memory {leaks}|{memory_resource}|{monotonic_buffer_resource}|{pmr}|placement {new}|\
        memory {pool}|{jemalloc}|{tcmalloc}|{mimalloc}|{unique_ptr}|{shared_ptr}|{weak_ptr}|{make_unique}|\
        {make_shared}|smart {pointer}|smart {pointers}|{allocator}|{allocators}|{allocator_traits}|{deallocate}|\
        {malloc}|{realloc}|{calloc}|{aligned_alloc}|{ownership}|{deleter}|{intrusive_ptr}|{refcount}|\
        reference {counting}|reference {count}|{polymorphic_allocator}|custom {deleter}|garbage {collector}|\
        double {free}|{enable_shared_from_this}|{free} list|{freelist}|{allocate_shared}|{dangling}|{shrink_to_fit}|\
        {uninitialized_copy}",
    ),
    (
        MemoryCode,
        1.0,
        "{allocate}|{allocates}|{allocation}|{allocations}|{leak}|{leaks}|{heap}|{arena}|{arenas}|{fragmentation}|\
        {free}(|{delete}[]|{delete} |{owns}|{owner}|{destructor}|{alignof}|{alignas}|{alignment}|{construct}|\
        {destroy}|{unmap}|{size_class}|{chunk}|{chunks}|{slab}|{RSS}|{capacity}|{freed}|{Alloc}|{ptr}|{pool}|\
        {new} char[|{purge}|{extent}",
    ),
    (
        SystemsCode,
        2.0,
        "{epoll}|{epoll_*}|{io_*}|{inotify}|{inotify_*}|{ioctl}|{mmap}|{munmap}|{setsockopt}|{getsockopt}|{recvfrom}|\
        {recvmsg}|{sendmsg}|{sendto}|{execve}|{execvp}|{waitpid}|{dup2}|file {descriptor}|file {descriptors}|\
        {EAGAIN}|{EINTR}|{EWOULDBLOCK}|{EINVAL}|{ENOMEM}|{ENOENT}|{EPIPE}|{sigaction}|{signalfd}|{timerfd}|\
        {eventfd}|{syscall}|{syscalls}|{netlink}|{O_*}|{AF_*}|{SO_*}|{SOCK_*}|{PROT_*}|{MAP_*}|{getaddrinfo}|\
        {termios}|{sockaddr}|{sockaddr_*}|{sockaddr_in}|{fcntl}|{io_uring}|{SIGTERM}|{SIGCHLD}|{SIGKILL}|{SIGINT}|\
        {SIGPIPE}|{SIGBUS}|{SCM_*}|{sysfs}|{procfs}|{cgroup}|{cgroups}|{ptrace}|{kqueue}|unix {domain}|{multicast}|\
        {daemon}|{fork}|{mount}|{namespaces}|{sqe}|{cqe}|{sys}/socket|{unistd}",
    ),
    (
        SystemsCode,
        1.0,
        "{socket}|{sockets}|{fd}|{fds}|{errno}|{accept}|{listen}|{recv}|{pipe}|{pipes}|{poll}|{kernel}|{systemd}|\
        {ssize_t}|{fstat}|{lseek}|{pread}|{pwrite}|{fsync}|{unlink}|{chmod}|/{proc}|/{dev}|/{sys}|{TCP}|{UDP}|{tcp}|\
        {udp}|{strerror}|{getpid}|{pid}|{pid_t}|{packet}|{packets}|{ipv4}|{ipv6}|{stdin}|{stderr}|{bind}|{perror}|\
        {uid}|{tty}|{netns}|{sk}|{hdr}|{device}|{interface}|{nonblocking}|{handle}",
    ),
    (
        StlCode,
        2.0,
        "{STL}|{unordered_map}|{unordered_set}|std::{ranges}|{views}::|std::{views}|{lower_bound}|{upper_bound}|\
        {partial_sort}|{nth_element}|{string_view}|{flat_map}|{flat_set}|{multimap}|{multiset}|{priority_queue}|\
        {forward_list}|{copy_if}|{remove_if}|{find_if}|{accumulate}|{inclusive_scan}|{partial_sum}|{inserter}|\
        {back_inserter}|{stable_sort}|{iterator_traits}|{random_access_iterator}|{bidirectional_iterator}|\
        {input_iterator}|{forward_iterator}|{forward_range}|{emplace}|{try_emplace}|{insert_or_assign}|\
        {emplace_hint}|{equal_range}|{set_union}|{set_intersection}|{const_iterator}|{reverse_iterator}|\
        {structured} bindings|{adjacent_find}|{rotate}|{iter_swap}|{none_of}|{all_of}|{any_of}|{make_heap}|\
        {push_heap}|{mismatch}",
    ),
    (
        StlCode,
        1.0,
        "std::{vector}|std::{map}|std::{set}|std::{list}|std::{deque}|std::{array}|std::{span}|std::{optional}|\
        std::{variant}|std::{expected}|std::{pair}|std::{sort}|std::{find}|std::{transform}|std::{copy}|\
        std::{unique}|std::{string}|std::{hash}|{push_back}|{emplace_back}|{push_front}|{iterator}|{iterators}|\
        {erase}|{begin}()|{end}()|{container}|{containers}|{key_type}|{mapped_type}|{value_type}|{difference_type}|\
        {rehash}|{bucket_count}|{reserve}|{insert}|{vector}|{deque}|{ranges}|{sentinel}|{sentinel_t}|{iter_*}|\
        {_Iterator}|{_Tp}",
    ),
    (
        AlgoCode,
        2.0,
        "{Dijkstra}|{dijkstra}|{Kruskal}|{kruskal}|{BFS}|{DFS}|{bfs}|{dfs}|dynamic {programming}|{memoization}|\
        {memoisation}|shortest {path}|shortest {paths}|spanning {tree}|{topological}|{union}-find|{knapsack}|\
        {backtracking}|convex {hull}|nearest {neighbour}|nearest {neighbours}|nearest {neighbor}|\
        nearest {neighbors}|{kd}-tree|{kdtree}|{KDTree}|segment {tree}|{Fenwick}|{fenwick}|max {flow}|{maxflow}|\
        {flow} network|{O}(n|{O}(1)|{O}(log|{O}(m|{O}(V|{O}(N|{adjacency}|{subsequence}|{triangulation}|{Delaunay}|\
        {Voronoi}|{linestring}|{num_vertices}|{vertex_descriptor}|{edge_descriptor}|{traversal}|{amortized}|\
        {amortised}|{bipartite}|{digraph}|{Digraph}|time {complexity}|{centroid}|{propagator}|{suffix} array|\
        {bitvector}|{quicksort}|{mergesort}|{heuristic}|{metaheuristic}|binary {search}",
    ),
    (
        AlgoCode,
        1.0,
        "{graph}|{graphs}|{Graph}|{dp}|{complexity}|{vertices}|{vertex}|{edges}|{edge}|{permutation}|{permutations}|\
        {greedy}|{polygon}|{polygons}|{point}|{points}|{palindrome}|{gcd}|{modulo}|{primes}|{recurrence}|{node}|\
        {nodes}|{weight}|{weights}|{matrix}|{geometry}|{distance}|{solver}|{cluster}|{clusters}|{centers}|\
        {algorithm}|{segment}|{segments}|{intersect}|{heap}|{literal}|{clause}|{clauses}|{fitness}|{population}|\
        {sorted}|{subset}|{adj}|{knn}|{bounding} box|{optimal}|{search}",
    ),
];

/// One pattern.
struct Pattern {
    tripwire: Tripwire,
    weight: f32,
    before: &'static str,
    word: &'static str,
    after: &'static str,
}

/// All patterns, found by their word.
pub(super) struct Lexicon {
    patterns: Vec<Pattern>,
    words: HashMap<&'static str, Vec<usize>>,
    frame: usize,
}

impl Lexicon {
    fn new() -> Self {
        let mut lexicon = Self { patterns: Vec::new(), words: HashMap::new(), frame: 0 };
        for (tripwire, weight, patterns) in TABLE {
            for pattern in patterns.split('|') {
                let parts = pattern.split_once('{').and_then(|(before, rest)| {
                    rest.split_once('}').map(|(word, after)| (before, word, after))
                });
                let (before, word, after) = parts.unwrap_or(("", pattern, ""));
                let i = lexicon.patterns.len();
                if word == "#frame" {
                    lexicon.frame = i;
                } else {
                    lexicon.words.entry(word.trim_end_matches('*')).or_default().push(i);
                }
                let (tripwire, weight) = (*tripwire, *weight);
                lexicon.patterns.push(Pattern { tripwire, weight, before, word, after });
            }
        }
        lexicon
    }

    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// The pattern that is a line of a stack trace: `#0`.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Patterns with this word, or else those of its longest prefix that ends with `_`.
    pub fn candidates(&self, word: &str) -> &[usize] {
        let by = |key: &str| self.words.get(key).map(Vec::as_slice);
        let prefix = || word.rmatch_indices('_').find_map(|(at, _)| by(&word[..=at]));
        by(word).or_else(prefix).unwrap_or_default()
    }

    /// Whether the text around the word is that of the pattern.
    pub fn matches(&self, i: usize, before: &str, after: &str) -> bool {
        let pattern = &self.patterns[i];
        let (wanted, before) = (pattern.before.as_bytes(), before.as_bytes());
        let digit_or =
            |(want, is): (&u8, &u8)| if *want == b'%' { is.is_ascii_digit() } else { want == is };
        let Some(start) = before.len().checked_sub(wanted.len()) else { return false };
        let (wanted_after, after) = (pattern.after.as_bytes(), after.as_bytes());
        wanted.iter().zip(&before[start..]).all(digit_or)
            && after.len() >= wanted_after.len()
            && wanted_after.iter().zip(after).all(digit_or)
    }

    /// Numbers of a tripwire's patterns.
    pub fn of(&self, tripwire: Tripwire) -> impl Iterator<Item = usize> {
        (0..self.patterns.len()).filter(move |i| self.patterns[*i].tripwire == tripwire)
    }

    pub fn weight(&self, i: usize) -> f32 {
        self.patterns[i].weight
    }

    /// The pattern's word.
    pub fn name(&self, i: usize) -> &'static str {
        self.patterns[i].word
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::{Token, tokens};
    use super::*;

    #[test]
    fn every_pattern_can_match_its_own_text() {
        let lexicon = Lexicon::new();
        for (i, p) in lexicon.patterns.iter().enumerate().filter(|(i, _)| *i != lexicon.frame) {
            let word = p.word.replace('*', "name");
            let text = format!("{}{word}{}", p.before, p.after).replace('%', "7");
            let found = tokens(&text).any(|token| match token {
                Token::Word { at, text: word } => {
                    let (before, after) = (&text[..at], &text[at + word.len()..]);
                    lexicon.candidates(word).contains(&i) && lexicon.matches(i, before, after)
                }
                _ => false,
            });
            assert!(found, "{text:?} ({:?}) cannot occur", p.tripwire);
        }
    }

    #[test]
    fn the_text_around_a_word_decides() {
        let lexicon = Lexicon::new();
        let hit = |word: &str, before: &str, after: &str| {
            let one = |i: &usize| lexicon.matches(*i, before, after);
            lexicon
                .candidates(word)
                .iter()
                .filter(|i| one(i))
                .map(|i| lexicon.patterns[*i].tripwire)
                .collect::<Vec<_>>()
        };
        assert_eq!(hit("error", "a.cpp:3:14: ", ": expected ';'"), [CompilerError, CompilerError]);
        assert_eq!(hit("error", "this is an ", " of mine"), []);
        assert_eq!(hit("vector", "std::", "<int>"), [StlCode, StlCode]);
        assert_eq!(hit("CMAKE_CXX_STANDARD", "set(", " 20)"), [BuildFile]);
        assert_eq!(hit("undefined", "", ""), []);
    }
}
