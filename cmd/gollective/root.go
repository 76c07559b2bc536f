package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gollective/gollective/bench/load"
	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/bench/tune"
	"github.com/gollective/gollective/internal/herd"
)

// The exit status is part of the command's contract.
const (
	good   = 0
	failed = 1
	usage  = 2
)

// usageError is a mistake on the command line; its text is one line that says what
// is accepted.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// run is the command: args begin with the program's name.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	root := newRoot(args)
	root.SetArgs(args[1:])
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return good
	}
	var exit exitStatus
	if errors.As(err, &exit) {
		return int(exit)
	}
	fmt.Fprintf(errs, "%s: %s\n", cmd.CommandPath(), strings.ReplaceAll(err.Error(), "\n", "; "))
	var ours *usageError
	var perfs *perf.UsageError
	var loads *load.UsageError
	var tunes *tune.UsageError
	if errors.As(err, &ours) || errors.As(err, &perfs) || errors.As(err, &loads) || errors.As(err, &tunes) {
		return usage
	}
	var start *herd.StartError
	if errors.As(err, &start) {
		return start.Status
	}
	return failed
}

func newRoot(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "gollective",
		Short:         "NCCL-style collectives for CPUs: measure them, look inside",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q; accepted: %s", args[0], commandNames(cmd))
			}
			return usagef("no command; accepted: %s", commandNames(cmd))
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newLoad(), newPerf(args), newPlan(), newRun(), newTree(), newTune(args), newVersion())
	return root
}

func commandNames(cmd *cobra.Command) string {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return strings.Join(names, ", ")
}

// flagError makes a usageError of what pflag has to say. Values say themselves
// what they accept; for unknown flags the accepted ones are listed.
func flagError(cmd *cobra.Command, err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	if strings.Contains(text, "accepted: ") {
		return usagef("%s", text)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if f.Shorthand != "" {
			flags = append(flags, "-"+f.Shorthand)
		} else {
			flags = append(flags, "--"+f.Name)
		}
	})
	return usagef("%s; accepted: %s", text, strings.Join(flags, " "))
}

// variables are those of the environment that a flag takes the place of: what is
// typed wins over what was set once.
var variables = map[string][]string{
	"algo":           {"GOLLECTIVE_ALGO"},
	"proto":          {"GOLLECTIVE_PROTO"},
	"wait":           {"GOLLECTIVE_WAIT"},
	"ranks-per-node": {"GOLLECTIVE_RANKS_PER_NODE"},
	"channels":       {"GOLLECTIVE_MIN_NCHANNELS", "GOLLECTIVE_MAX_NCHANNELS"},
}

func overrideEnvironment(flags *pflag.FlagSet) {
	flags.Visit(func(f *pflag.Flag) {
		for _, v := range variables[f.Name] {
			os.Unsetenv(v)
		}
	})
}
