package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective"
)

// mostPlanBytes bounds what plan accepts: planning looks at buffers' lengths, so
// they have to exist, if only as addresses.
const mostPlanBytes = 16 << 30

func newPlan() *cobra.Command {
	o := perf.DefaultOptions()
	o.MinBytes = 1 << 20
	rank, ranks := -1, 4
	cmd := &cobra.Command{
		Use:   "plan COLLECTIVE [flags]",
		Short: "print the schedule of a call as text",
		Long: "plan prints what every rank, or one, does for a call: per channel, which primitive\n" +
			"on which piece of the buffers, and which ranks it receives from and sends to.\n\n" +
			"COLLECTIVE is " + strings.Join(perf.Collectives(), ", ") + ".",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%d arguments; accepted: one collective (%s)", len(args), strings.Join(perf.Collectives(), ", "))
			}
			o.Collective, o.Devices, o.MaxBytes = args[0], ranks, o.MinBytes
			switch {
			case ranks < 1 || ranks > 4096:
				return usagef("-n %d; accepted: 1 to 4096", ranks)
			case rank < -1 || rank >= ranks:
				return usagef("--rank %d; accepted: 0 to %d, or -1 for all", rank, ranks-1)
			case o.MinBytes > mostPlanBytes:
				return usagef("-b %d; accepted: up to 16G", o.MinBytes)
			case o.Op == "all" || o.Type == "all" || o.Root == perf.AllRoots:
				return usagef("a plan is one call's; accepted: a single -o, -d and -r")
			}
			if err := o.Validate(); err != nil {
				return err
			}
			overrideEnvironment(cmd.Flags())
			return printPlans(cmd.OutOrStdout(), &o, rank)
		},
	}
	cmd.Flags().IntVarP(&ranks, "ranks", "n", ranks, "number of ranks")
	cmd.Flags().IntVar(&rank, "rank", rank, "rank whose plan is printed; -1 = all")
	o.AddPlanFlags(cmd.Flags())
	return cmd
}

// printPlans prints the plans of one rank, or of all if only is negative.
func printPlans(w io.Writer, o *perf.Options, only int) error {
	comms, err := collective.InitAllConfig(o.Ranks(), o.Config())
	if err != nil {
		return err
	}
	separator := ""
	for rank, c := range comms {
		defer c.Close()
		if only >= 0 && rank != only {
			continue
		}
		calls, err := o.Calls(rank)
		if err != nil {
			return err
		}
		for _, call := range calls {
			p, err := c.Plan(call)
			if err != nil {
				return err
			}
			fmt.Fprint(w, separator, strings.TrimRight(p.String(), "\n"), "\n")
			separator = "\n"
		}
	}
	return nil
}
