package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/bench/perf"
)

func newPerf(args []string) *cobra.Command {
	o := perf.DefaultOptions()
	o.Args, o.Version = args, version()
	cmd := &cobra.Command{
		Use:   "perf [COLLECTIVE] [flags]",
		Short: "measure and verify a collective, as nccl-tests does",
		Long: "perf measures a collective between the goroutine ranks of this process, or of all\n" +
			"processes that a launcher (gollective run, mpirun, srun, …) has started, and\n" +
			"verifies its results. Flags, output and JSON report are those of nccl-tests.\n\n" +
			"COLLECTIVE is " + strings.Join(perf.Collectives(), ", ") + ".\n" +
			"Without it, all_reduce is run with -g 4 (-g 1 under a launcher) -b 8 -e 8M -f 2\n" +
			"where these are not given.\n\n" +
			"GOLLECTIVE_TESTS_MIN_BW=X makes a run fail whose average bus bandwidth is more than\n" +
			"a tenth below X GB/s. GOLLECTIVE_TESTS_ALLTOALLV_SPREAD=0…1 makes alltoallv even (0)\n" +
			"or proportional to the distance of the ranks (1, the default).",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				o.Collective = "all_reduce"
				demonstrate(cmd, &o)
			case 1:
				o.Collective = args[0]
			default:
				return usagef("unexpected %q; accepted: one collective (%s)", args[1], strings.Join(perf.Collectives(), ", "))
			}
			overrideEnvironment(cmd.Flags())
			return perf.Run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

// demonstrate turns nccl-tests' defaults, one rank and one size, into a run worth
// looking at.
func demonstrate(cmd *cobra.Command, o *perf.Options) {
	for name, set := range map[string]func(){
		"ngpus": func() {
			if !launched() {
				o.Devices = 4
			}
		},
		"minbytes":   func() { o.MinBytes = 8 },
		"maxbytes":   func() { o.MaxBytes = 8 << 20 },
		"stepfactor": func() { o.StepFactor = 2 },
	} {
		if !cmd.Flags().Changed(name) {
			set()
		}
	}
}

// launched reports whether the environment looks like a launcher's. It only decides
// how many ranks a process has by default: who is who, collective finds out.
func launched() bool {
	for _, name := range []string{
		"GOLLECTIVE_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_FD", "PMI_PORT",
		"SLURM_PROCID", "JOB_COMPLETION_INDEX",
	} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}
