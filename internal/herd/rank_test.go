//go:build unix

package herd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rankMain is a rank: it does the steps one after the other, each a verb and, after
// a colon, its object. A step that begins with "N/" is rank N's alone, with "!N/"
// that of all others.
func rankMain(steps []string) int {
	rank := os.Getenv(rankVar)
	for _, step := range steps {
		if who, rest, ok := strings.Cut(step, "/"); ok {
			if not, isNot := strings.CutPrefix(who, "!"); isNot && not == rank || !isNot && who != rank {
				continue
			}
			step = rest
		}
		verb, object, _ := strings.Cut(step, ":")
		if status, end := doStep(rank, verb, object); end {
			return status
		}
	}
	return 0
}

func doStep(rank, verb, object string) (status int, end bool) {
	switch verb {
	case "print": // without a line break but those of the text
		fmt.Print(object)
	case "eprint":
		fmt.Fprint(os.Stderr, object)
	case "pid":
		fmt.Printf("pid %d\n", os.Getpid())
	case "cat":
		text, _ := io.ReadAll(os.Stdin)
		fmt.Printf("read %q\n", text)
	case "flood":
		flood(rank, number(object))
	case "child": // does the steps after the first, + for each comma
		child(strings.Split(object, "+"), &syscall.SysProcAttr{})
	case "daemon":
		child(strings.Split(object, "+"), &syscall.SysProcAttr{Setsid: true})
	case "ignore":
		signal.Ignore(unix.SignalNum(object))
	case "tell": // prints what it gets, from now on
		tell(object)
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "kill":
		_ = syscall.Kill(os.Getpid(), unix.SignalNum(object))
		select {}
	case "exit":
		return number(object), true
	case "wait": // until the job's end, or forever
		time.Sleep(10 * time.Minute)
	default:
		panic(verb)
	}
	return 0, false
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// flood writes lines from two goroutines to both streams, in writes that end
// anywhere.
func flood(rank string, lines int) {
	var g sync.WaitGroup
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		g.Go(func() {
			var text bytes.Buffer
			for i := range lines {
				fmt.Fprintf(&text, "<%s %d %s>\n", rank, i, strings.Repeat(rank, i*37%301))
			}
			for size := 1; text.Len() > 0; size = (size*5 + 3) % 4099 {
				_, _ = f.Write(text.Next(size))
			}
		})
	}
	g.Wait()
}

// child starts a process that this one doesn't wait for.
func child(steps []string, attributes *syscall.SysProcAttr) {
	command := ranks(steps...)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attributes
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

func tell(names string) {
	signals := make(chan os.Signal, 16)
	for name := range strings.SplitSeq(names, "+") {
		signal.Notify(signals, unix.SignalNum(name))
	}
	go func() {
		for s := range signals {
			fmt.Println("got " + unix.SignalName(s.(syscall.Signal)))
			if s == syscall.SIGTERM {
				os.Exit(7)
			}
		}
	}()
}
