package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

//go:embed c
var sources embed.FS

// program is what a contender runs.
type program struct {
	path     string
	launcher string // the library's mpirun
	major    int    // version of the launcher, 0 if it does not tell
}

// errMissing is wrapped where something that is not installed keeps a peer away.
var errMissing = errors.New("not installed")

// workshop is the directory in which programs are built. Each is built once.
type workshop struct {
	ctx  context.Context
	dir  string
	made map[string]outcome
}

type outcome struct {
	program
	err error
}

func newWorkshop(ctx context.Context) (*workshop, error) {
	dir, err := os.MkdirTemp("", "gollective-peers-")
	if err != nil {
		return nil, err
	}
	w := &workshop{ctx, dir, make(map[string]outcome)}
	err = fs.WalkDir(sources, "c", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, d.Name()), text, 0o600)
	})
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *workshop) close() { os.RemoveAll(w.dir) }

// build makes c's program, once.
func (w *workshop) build(c *contender) (program, error) {
	o, made := w.made[c.family]
	if !made {
		o.program, o.err = c.build(w)
		w.made[c.family] = o
	}
	return o.program, o.err
}

// compile builds a program from a source and returns its path. What the compiler says
// in short is in the error.
func (w *workshop) compile(name, compiler, source string, flags ...string) (string, error) {
	path := filepath.Join(w.dir, name)
	args := append([]string{"-O3", "-march=native", "-o", path, source}, flags...)
	c := exec.CommandContext(w.ctx, compiler, args...)
	c.Dir, c.Env = w.dir, append(os.Environ(), "LC_ALL=C")
	text, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", compiler, source, err, complaint(string(text)))
	}
	return path, nil
}

// complaint is the line of a compiler's or launcher's output that says most: the first
// with a word for failing, else the last.
func complaint(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, word := range []string{"error", "signal", "terminat", "fail"} {
		for _, line := range lines {
			if strings.Contains(strings.ToLower(line), word) {
				return strings.TrimSpace(line)
			}
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// mpi is where an MPI library may be found: Debian's names for one of several
// libraries, and then those of one that is alone.
func (w *workshop) mpi(brand string, pairs ...[2]string) (program, error) {
	for _, pair := range pairs {
		compiler, launcher := pair[0], pair[1]
		if _, err := exec.LookPath(compiler); err != nil {
			continue
		}
		if _, err := exec.LookPath(launcher); err != nil {
			continue
		}
		if !strings.Contains(w.ask(compiler, "-showme:version")+w.ask(compiler, "-v"), brand) {
			continue
		}
		path, err := w.compile("mpi-"+strings.ReplaceAll(brand, " ", "-"), compiler, "mpi.c")
		if err != nil {
			if strings.Contains(err.Error(), "mpi.h") {
				err = fmt.Errorf("%w: its header files (%w)", errMissing, err)
			}
			return program{}, err
		}
		return program{path, launcher, majorOf(w.ask(launcher, "--version"))}, nil
	}
	return program{}, fmt.Errorf("%w: no compiler and launcher (%s, %s)", errMissing, pairs[0][0], pairs[0][1])
}

// ask is what a program prints, whatever its exit status.
func (w *workshop) ask(name string, args ...string) string {
	text, _ := exec.CommandContext(w.ctx, name, args...).CombinedOutput()
	return string(text)
}

var versionNumber = regexp.MustCompile(`(\d+)\.\d+`)

// majorOf is the first part of the first version number in a text, 0 if there is none.
func majorOf(text string) int {
	m := versionNumber.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}

func buildOpenMPI(w *workshop) (program, error) {
	return w.mpi("Open MPI", [2]string{"mpicc.openmpi", "mpirun.openmpi"}, [2]string{"mpicc", "mpirun"})
}

func buildMPICH(w *workshop) (program, error) {
	return w.mpi("MPICH", [2]string{"mpicc.mpich", "mpiexec.mpich"}, [2]string{"mpicc", "mpiexec"})
}

func buildGloo(w *workshop) (program, error) {
	if _, err := exec.LookPath("g++"); err != nil {
		return program{}, fmt.Errorf("%w: no C++ compiler (g++)", errMissing)
	}
	path, err := w.compile("gloo", "g++", "gloo.cc", "-std=c++14", "-lgloo", "-lpthread")
	if err != nil && (strings.Contains(err.Error(), "gloo/") && strings.Contains(err.Error(), "No such file") || strings.Contains(err.Error(), "-lgloo")) {
		err = fmt.Errorf("%w: its header files or library (%w)", errMissing, err)
	}
	return program{path: path}, err
}

func buildLimits(w *workshop) (program, error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return program{}, fmt.Errorf("%w: no C compiler (gcc)", errMissing)
	}
	path, err := w.compile("limits", "gcc", "limits.c", "-lpthread")
	return program{path: path}, err
}

// buildNothing is for gollective, which is this program.
func buildNothing(*workshop) (program, error) { return program{}, nil }
