package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/bench/load"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/internal/herd"
)

func newLoad() *cobra.Command {
	o := load.DefaultOptions()
	o.Version = version()
	var rank string
	cmd := &cobra.Command{
		Use:   "load [flags]",
		Short: "show what waiting costs: processor time by wait policy and proxy driver",
		Long: "load shows on this machine why collectives in the manner of NCCL keep processors busy,\n" +
			"and how much of that is work. For each wait policy and proxy driver it starts rank\n" +
			"processes that are connected by TCP over loopback, and measures idle communicators,\n" +
			"allreduces back to back, and a rank that is late; with policy spin also a slow network.\n\n" +
			"It prints a table (100 % = one core) and after it claims about spinning, each with PASS or\n" +
			"FAIL and the numbers measured. The exit status is 1 if any is FAIL: on a machine that has\n" +
			"other work to do, or whose processors are not its own, some may.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected %q; accepted: no arguments", args[0])
			}
			if rank != "" {
				return load.Rank(cmd.Context(), rank, cmd.OutOrStdout())
			}
			o.Settle(cmd.Flags().Changed)
			return load.Run(cmd.Context(), o, launcher(cmd, load.Variables()), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&rank, "rank", "", "")
	_ = cmd.Flags().MarkHidden("rank") // of the processes that load starts itself
	return cmd
}

// launcher starts ranks as cmd's own, hidden form, without the given variables.
func launcher(cmd *cobra.Command, variables []string) load.Launcher {
	// What is measured is said by the cases, for all processes of their jobs.
	for _, v := range variables {
		os.Unsetenv(v)
	}
	return func(ctx context.Context, n int, text string, out io.Writer) error {
		id, err := collective.NewUniqueID(collective.Config{Place: collective.Place{Size: n, LocalSize: n}})
		if err != nil {
			return err
		}
		defer id.Close()
		keeper, err := keeperCommand()
		if err != nil {
			return err
		}
		o := runOptions{ranks: n}
		status, err := herd.Run(ctx, herd.Config{
			Command: []string{keeper[0], cmd.Name(), "--rank", text}, Ranks: n,
			Environ: func(rank int) []string { return o.environ(rank, id.String()) },
			Label:   herd.LabelNever, Grace: time.Second,
			Stdout: out, Stderr: cmd.ErrOrStderr(),
			Name: cmd.CommandPath(), Keeper: keeper,
		})
		if err == nil && status != good {
			err = fmt.Errorf("a rank has failed with status %d", status)
		}
		return err
	}
}
