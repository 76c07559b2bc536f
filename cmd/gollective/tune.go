package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/bench/tune"
)

func newTune(args []string) *cobra.Command {
	o := tune.DefaultOptions()
	o.Args, o.Version = args, version()
	var rank string
	cmd := &cobra.Command{
		Use:   "tune [COLLECTIVE...] [flags]",
		Short: "measure which algorithm and protocol is best here, and write a tuner file",
		Long: "tune measures each algorithm and protocol at each size, between goroutine ranks and\n" +
			"between processes that it starts, and writes a file of rules in the format of NCCL's\n" +
			"tuner plugin, which the library uses where GOLLECTIVE_TUNER_FILE names it.\n\n" +
			"It prints for each size what the library chooses of itself and what is best, with their\n" +
			"times and the ratio, and what a hop costs according to these times.\n\n" +
			"COLLECTIVE is some of " + strings.Join(tune.Collectives(), ", ") + "; all if there is none.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if rank != "" {
				return tune.Rank(cmd.Context(), rank, cmd.OutOrStdout())
			}
			o.Collectives = args
			return tune.Run(cmd.Context(), o, tune.Launcher(launcher(cmd, tune.Variables())), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&rank, "rank", "", "")
	_ = cmd.Flags().MarkHidden("rank") // of the processes that tune starts itself
	return cmd
}
