package importrules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gollective/gollective"

// room is one package: what it may import. Tests may import more (see rules).
type room struct {
	ours    []string // packages of this module
	modules []string // modules of others
}

// rooms lists every package, from the ground up: a package imports only what
// stands above it here.
var rooms = []struct {
	name string
	room
}{
	// Facts and arithmetic. Nothing here waits, or knows a communicator.
	{"dtype", room{}},
	{"collective/topo", room{}},
	{"internal/fault", room{}},
	{"internal/reduce", room{ours: []string{"dtype"}, modules: []string{cpuid, sys}}},
	// A schedule is a value: it can't send anything.
	{"collective/plan", room{ours: []string{"collective/topo", "dtype", "internal/reduce"}}},

	// What threads have used of the processors.
	{"internal/cpuclock", room{modules: []string{sys}}},
	// The one place that waits.
	{"internal/spin", room{ours: []string{"internal/cpuclock"}, modules: []string{sys}}},
	// What ranks write down about themselves, and in which call they are.
	{"internal/ledger", room{ours: []string{"collective/plan", "internal/fault", "internal/spin"}}},

	// Transports move bytes and know no protocol; protocols know no algorithm.
	{"transport", room{ours: []string{"internal/spin"}}},
	{"transport/inproc", room{ours: []string{"transport"}}},
	{"transport/shm", room{ours: []string{"internal/fault", "internal/spin", "transport"}, modules: []string{sys}}},
	{"internal/hostmem", room{modules: []string{sys}}},
	{"transport/transporttest", room{ours: []string{"internal/spin", "transport"}, modules: []string{testify}}},
	{"proto", room{ours: []string{"internal/reduce", "internal/spin", "transport"}, modules: []string{cpuid}}},

	// The blocks: plans meet protocols and transports. Which transport it is,
	// only collective knows.
	{"internal/exec", room{ours: []string{
		"collective/plan", "dtype", "internal/fault", "internal/ledger", "internal/reduce", "internal/spin", "proto", "transport",
	}}},

	// On which processors a process may run.
	{"internal/affinity", room{modules: []string{sys}}},
	// How processes find each other.
	{"internal/launch", room{modules: []string{sys}}},
	{"internal/address", room{modules: []string{sys}}},
	{"internal/handshake", room{modules: []string{sys}}},
	{"internal/bootstrap", room{ours: []string{"internal/address", "internal/fault", "internal/handshake", "internal/launch"}, modules: []string{sys}}},
	// Ranks of several hosts: proxies carry FIFOs over sockets.
	{"transport/tcp", room{ours: []string{
		"internal/address", "internal/cpuclock", "internal/fault", "internal/handshake", "internal/hostmem", "internal/spin", "transport",
	}, modules: []string{sys}}},

	// Processes that are started, watched and ended together.
	{"internal/herd", room{modules: []string{sys}}},

	// What users import. Protocols are below it only through exec.
	{"collective", room{ours: []string{
		"collective/plan", "collective/topo", "dtype",
		"internal/address", "internal/affinity", "internal/bootstrap", "internal/exec", "internal/fault", "internal/launch", "internal/ledger", "internal/reduce", "internal/spin",
		"transport", "transport/inproc", "transport/shm", "transport/tcp",
	}}},

	// Tools and what only tests use. They see what users see, and the numbers.
	{"bench/perf/verify", room{ours: []string{"dtype", "internal/reduce"}}},
	{"bench/perf", room{
		ours:    []string{"bench/perf/verify", "collective", "collective/plan", "dtype", "internal/reduce", "internal/spin"},
		modules: []string{cpuid, pflag, progressbar, term, sys},
	}},
	{"bench/load", room{
		ours:    []string{"bench/perf", "collective", "internal/affinity", "internal/spin"},
		modules: []string{pflag, plot, progressbar, term},
	}},
	{"bench/tune", room{
		ours:    []string{"bench/perf", "collective", "collective/plan", "dtype"},
		modules: []string{cpuid, pflag, progressbar, term},
	}},
	{"bench/peers", room{
		ours:    []string{"collective", "internal/affinity", "internal/herd"},
		modules: []string{cpuid, progressbar, term, sys},
	}},
	{"bench", room{ours: []string{"bench/perf", "collective", "collective/plan", "dtype"}, modules: []string{cpuid}}},
	{"collective/internal/pairwise", room{}},
	{"collective/internal/sequential", room{ours: []string{"collective/plan", "dtype", "internal/reduce"}}},
	{"collective/internal/trial", room{ours: []string{
		"bench/perf/verify", "collective", "collective/internal/sequential", "collective/plan", "dtype", "internal/reduce",
	}}},
	{"cmd/gollective", room{
		ours: []string{
			"bench/load", "bench/perf", "bench/tune", "collective", "collective/plan", "collective/topo", "dtype", "internal/herd", "internal/launch",
		},
		modules: []string{cobra, pflag, sys, term},
	}},
	{"internal/importrules", room{}},
	{"internal/netlab", room{modules: []string{sys}}},
}

// Modules of others.
const (
	cobra       = "github.com/spf13/cobra"
	cpuid       = "github.com/klauspost/cpuid/v2"
	goleak      = "go.uber.org/goleak"
	pflag       = "github.com/spf13/pflag"
	plot        = "gonum.org/v1/plot"
	progressbar = "github.com/schollz/progressbar/v3"
	rapid       = "pgregory.net/rapid"
	sys         = "golang.org/x/sys"
	term        = "golang.org/x/term"
	testify     = "github.com/stretchr/testify"
)

// testModules may be imported by every _test.go file, and in no other file unless
// its room says so.
var testModules = []string{testify, goleak, rapid, sys}

// unsafeFiles may import unsafe; each states its invariants. Tests may, too.
var unsafeFiles = []string{
	"bench/peers/floats.go",              // memory that peers map as floats
	"collective/internal/trial/place.go", // misaligned buffers for tests
	"collective/memory.go",               // slices of T as bytes
	"collective/number.go",               // size of T
	"internal/hostmem/aligned.go",        // pages of the heap
	"internal/ledger/overlay.go",         // pages in shared memory
	"internal/reduce/view.go",            // bytes as elements
	"internal/spin/bed_linux.go",         // futex
	"internal/spin/beds.go",              // beds in shared memory
	"proto/publish_amd64.go",             // a word that is published without a fence
	"transport/tcp/iovec_linux.go",       // buffers of readv and writev
	"transport/words.go",                 // slots as 64-bit words
}

// waitingRooms may call runtime.Gosched and poll in a loop. The suite of
// transports plays users with delays of their own.
var waitingRooms = []string{"internal/spin", "transport/transporttest"}

// namesWithoutMeaning are no names for a package.
var namesWithoutMeaning = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}

// source is one parsed file.
type source struct {
	file string // relative to the module, with slashes
	room string // its directory
	test bool
	set  *token.FileSet
	tree *ast.File
}

// at is a position for a message.
func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.file, s.set.Position(n.Pos()).Line)
}

// imports lists the paths that s imports.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, spec := range s.tree.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		paths = append(paths, p)
	}
	return paths
}

// sources parses every Go file of the module, whatever its build tags. Modules
// within it (examples with dependencies of their own) are not part of it.
func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "go.mod"))
	var all []source
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if err == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		s := source{file: rel, room: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"), set: token.NewFileSet()}
		if s.tree, err = parser.ParseFile(s.set, name, nil, parser.SkipObjectResolution); err != nil {
			return err
		}
		all = append(all, s)
		return nil
	}))
	require.NotEmpty(t, all)
	return all
}

// within reports whether an import path lies in a module or package tree.
func within(imported string, trees []string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return imported == tree || strings.HasPrefix(imported, tree+"/")
	})
}

// external reports whether a path is neither ours nor the standard library's.
func external(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return strings.Contains(first, ".") && !within(imported, []string{module})
}

func TestPackagesImportOnlyWhatTheirRoomAllows(t *testing.T) {
	allowed := make(map[string]room)
	for _, r := range rooms {
		allowed[r.name] = r.room
	}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		r, known := allowed[s.room]
		if !known {
			t.Errorf("%s: package %s has no room in the table of this test", s.file, s.room)
			continue
		}
		for _, imported := range s.imports(t) {
			ours, isOurs := strings.CutPrefix(imported, module+"/")
			switch {
			case isOurs && !slices.Contains(r.ours, ours):
				t.Errorf("%s imports %s, which %s may not", s.file, ours, s.room)
			case external(imported) && !within(imported, r.modules):
				t.Errorf("%s imports %s, which %s may not", s.file, imported, s.room)
			}
		}
	}
}

// The table itself must have a direction: nobody may import what stands below.
func TestTheTableOfRoomsHasNoCircles(t *testing.T) {
	above := make(map[string]bool)
	for _, r := range rooms {
		for _, ours := range r.ours {
			require.True(t, above[ours], "%s may import %s, which stands below it", r.name, ours)
		}
		require.False(t, above[r.name], "%s twice", r.name)
		above[r.name] = true
	}
}

func TestEveryRoomIsInhabited(t *testing.T) {
	inhabited := make(map[string]bool)
	for _, s := range sources(t) {
		inhabited[s.room] = true
	}
	for _, r := range rooms {
		if !inhabited[r.name] {
			t.Errorf("%s is in the table and has no files", r.name)
		}
	}
}

// Tests may import any package of ours (the compiler refuses circles), but no
// module that neither is for tests nor belongs to their room.
func TestTestsImportModulesForTestsAndThoseOfTheirRoom(t *testing.T) {
	allowed := make(map[string]room)
	for _, r := range rooms {
		allowed[r.name] = r.room
	}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, imported := range s.imports(t) {
			if external(imported) && !within(imported, testModules) && !within(imported, allowed[s.room].modules) {
				t.Errorf("%s imports %s", s.file, imported)
			}
		}
	}
}

func TestUnsafeIsUsedInTheListedFilesOnly(t *testing.T) {
	used := make(map[string]bool)
	for _, s := range sources(t) {
		if !s.test && slices.Contains(s.imports(t), "unsafe") {
			used[s.file] = true
		}
	}
	require.ElementsMatch(t, unsafeFiles, slices.Collect(maps.Keys(used)))
}

func TestNothingNeedsCgo(t *testing.T) {
	for _, s := range sources(t) {
		require.NotContains(t, s.imports(t), "C", s.file)
	}
}

func TestPackagesHaveNamesThatSaySomething(t *testing.T) {
	for _, s := range sources(t) {
		for _, name := range append(strings.Split(s.room, "/"), strings.TrimSuffix(s.tree.Name.Name, "_test")) {
			require.NotContains(t, namesWithoutMeaning, strings.ToLower(name), s.file)
		}
	}
}

// Everything that waits asks internal/spin to, which counts it, bounds it and can
// end it.
func TestOnlyTheWaitingRoomsPoll(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || slices.Contains(waitingRooms, s.room) {
			continue
		}
		for _, complaint := range polling(s) {
			t.Error(complaint)
		}
	}
}

// polling lists the places where s gives its processor away or burns it: calls of
// runtime.Gosched, and loops that do nothing but look at something again.
func polling(s source) []string {
	var found []string
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && of.Name == "runtime" && n.Sel.Name == "Gosched" {
				found = append(found, s.at(n)+": runtime.Gosched")
			}
		case *ast.ForStmt:
			if n.Cond != nil && n.Post == nil && looks(n.Cond) && !calls(n.Body) {
				found = append(found, s.at(n)+": a loop that polls")
			}
		}
		return true
	})
	return found
}

// looks reports whether a condition asks something that others change.
func looks(cond ast.Expr) bool {
	found := false
	ast.Inspect(cond, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				found = found || slices.Contains([]string{"Load", "Ready", "CompareAndSwap", "TryLock"}, s.Sel.Name)
			}
		}
		return true
	})
	return found
}

// calls reports whether a block calls anything but what gives time away.
func calls(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			s, ok := call.Fun.(*ast.SelectorExpr)
			found = found || !ok || !slices.Contains([]string{"Gosched", "Sleep", "Load"}, s.Sel.Name)
		}
		return true
	})
	return found
}

// The checks of this file find what they are for.
func TestPollingIsRecognised(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		want       int
	}{
		{"a yield", "runtime.Gosched()", 1},
		{"an empty loop", "for !flag.Load() {}", 1},
		{"a loop that sleeps", "for !flag.Load() { time.Sleep(1) }", 1},
		{"a loop that yields is two of them", "for !c.Ready() { runtime.Gosched() }", 2},
		{"a lock that spins", "for !mu.TryLock() {}", 1},
		{"a loop that counts", "for i := 0; i < n; i++ {}", 0},
		{"a loop that works", "for !done.Load() { step() }", 0},
		{"a retry", "for !x.CompareAndSwap(old, next) { old = x.Load(); next = f(old) }", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := source{file: "x.go", set: token.NewFileSet()}
			var err error
			s.tree, err = parser.ParseFile(s.set, "x.go", "package x\nfunc f() {\n"+tc.body+"\n}", 0)
			require.NoError(t, err)
			require.Len(t, polling(s), tc.want)
		})
	}
}
