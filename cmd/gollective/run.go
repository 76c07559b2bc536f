package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/internal/herd"
)

// mostProcesses keeps a slip of the finger from being a fork bomb.
const mostProcesses = 4096

// exitStatus ends the command with this status and without a message.
type exitStatus int

func (e exitStatus) Error() string { return "exit status " + strconv.Itoa(int(e)) }

type runOptions struct {
	ranks     int
	transport string
	label     string
	grace     grace
	env       []string
	keeper    bool
}

func newRun() *cobra.Command {
	o := runOptions{label: string(herd.LabelAuto), grace: grace(5 * time.Second)}
	cmd := &cobra.Command{
		Use:   "run -n N [flags] -- PROGRAM [ARGS]",
		Short: "start N processes of a program on this host as ranks of one job",
		Long: "run starts N processes of PROGRAM on this host, tells each its rank, and looks after\n" +
			"them until all have ended.\n\n" +
			"When one fails the others are ended: SIGTERM, and SIGKILL after --grace. The exit status\n" +
			"is that of the rank that failed first, 128 plus the number of a signal it died of; 127 when\n" +
			"there is no such program, 126 when it can't be started. No process is left behind.\n\n" +
			"Lines of output stay whole. They get the rank as prefix, \"[1] \", but for rank 0's as long as\n" +
			"no other rank has written to the same stream. Rank 0 alone has the standard input.\n\n" +
			"SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all; a second Ctrl-C\n" +
			"kills.\n\n" +
			"Each process finds GOLLECTIVE_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE and _COMM_ID in its\n" +
			"environment, and torchrun's RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE for\n" +
			"programs that know only those.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.keeper {
				return herd.Keep(os.Stdin)
			}
			return o.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the program's name is the program's
	flags.IntVarP(&o.ranks, "ranks", "n", 0, "number of processes")
	flags.StringVar(&o.transport, "transport", "", "how ranks are connected: auto, shm, tcp (default as GOLLECTIVE_TRANSPORT says, else auto)")
	flags.StringVar(&o.label, "label", o.label, "prefix lines with the rank: auto, always, never")
	flags.Lookup("label").NoOptDefVal = string(herd.LabelAlways)
	flags.Var(&o.grace, "grace", "time between SIGTERM and SIGKILL")
	flags.StringArrayVar(&o.env, "env", nil, "NAME=VALUE to set for the processes; may be repeated")
	flags.BoolVar(&o.keeper, "keeper", false, "")
	_ = flags.MarkHidden("keeper") // started by run itself
	return cmd
}

// grace is a duration that says what it accepts.
type grace time.Duration

func (g *grace) String() string { return time.Duration(*g).String() }
func (g *grace) Type() string   { return "duration" }
func (g *grace) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("accepted: a duration such as 5s, 1m30s or 0")
	}
	*g = grace(d)
	return nil
}

func (o *runOptions) check(args []string) error {
	switch {
	case o.ranks < 1 || o.ranks > mostProcesses:
		return usagef("-n %d; accepted: 1 to %d", o.ranks, mostProcesses)
	case !slices.Contains([]string{"", "auto", "shm", "tcp"}, o.transport):
		return usagef("--transport %s; accepted: auto, shm, tcp", o.transport)
	case !slices.Contains([]herd.Label{herd.LabelAuto, herd.LabelAlways, herd.LabelNever}, herd.Label(o.label)):
		return usagef("--label=%s; accepted: auto, always, never", o.label)
	case len(args) == 0 || args[0] == "":
		return usagef("no program; accepted: -n N [flags] -- PROGRAM [ARGS]")
	}
	ours := o.variables(0, "")
	for _, e := range o.env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.ContainsRune(e, 0) {
			return usagef("--env %q; accepted: NAME=VALUE", e)
		}
		if slices.ContainsFunc(ours, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			return usagef("--env %s; accepted: variables that run doesn't set itself", name)
		}
	}
	return nil
}

func (o *runOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.check(args); err != nil {
		return err
	}
	// What is for the processes holds for the launcher's part of their job, too:
	// PATH, GOLLECTIVE_SOCKET_IFNAME, GOLLECTIVE_JOIN_TIMEOUT.
	for _, e := range o.env {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return usagef("--env %q: %v; accepted: NAME=VALUE", e, err)
		}
	}
	id, err := collective.NewUniqueID(collective.Config{
		Place: collective.Place{Size: o.ranks, LocalSize: o.ranks},
	})
	if err != nil {
		return err
	}
	defer id.Close()
	keeper, err := keeperCommand()
	if err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		return exitStatus(128 + 2) // interrupted before there was anybody to tell
	}
	// The context is done at the first interrupt, which is passed on instead.
	status, err := herd.Run(context.WithoutCancel(cmd.Context()), herd.Config{
		Command: args, Ranks: o.ranks,
		Environ: func(rank int) []string { return o.environ(rank, id.String()) },
		Label:   herd.Label(o.label), Grace: time.Duration(o.grace),
		Stdin: os.Stdin, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		Name: cmd.CommandPath(), Keeper: keeper,
	})
	if err == nil && status != good {
		err = exitStatus(status)
	}
	return err
}

// keeperCommand is this very program, even when its file has been replaced.
func keeperCommand() ([]string, error) {
	self, err := os.Executable()
	if runtime.GOOS == "linux" {
		self, err = "/proc/self/exe", nil
	}
	return []string{self, "run", "--keeper"}, err
}

// variables is what a rank is told about itself. GOLLECTIVE_RANK and _SIZE are a
// complete set, so that torchrun's, which say the same, aren't even looked at by
// our own programs. MASTER_ADDR and MASTER_PORT are left as they are: nothing
// here serves them.
func (o *runOptions) variables(rank int, id string) []string {
	env := []string{
		fmt.Sprintf("GOLLECTIVE_RANK=%d", rank),
		fmt.Sprintf("GOLLECTIVE_SIZE=%d", o.ranks),
		fmt.Sprintf("GOLLECTIVE_LOCAL_RANK=%d", rank),
		fmt.Sprintf("GOLLECTIVE_LOCAL_SIZE=%d", o.ranks),
		"GOLLECTIVE_COMM_ID=" + id,
		fmt.Sprintf("RANK=%d", rank),
		fmt.Sprintf("WORLD_SIZE=%d", o.ranks),
		fmt.Sprintf("LOCAL_RANK=%d", rank),
		fmt.Sprintf("LOCAL_WORLD_SIZE=%d", o.ranks),
	}
	if o.transport != "" {
		env = append(env, "GOLLECTIVE_TRANSPORT="+o.transport)
	}
	return env
}

// environ is the launcher's environment without what it says of other places to
// meet, and with variables.
func (o *runOptions) environ(rank int, id string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GOLLECTIVE_ROOT=")
	})
	return append(env, o.variables(rank, id)...)
}
