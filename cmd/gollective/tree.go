package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gollective/gollective/collective/topo"
)

func newTree() *cobra.Command {
	const most = 1 << 20
	return &cobra.Command{
		Use:   "tree N",
		Short: "print the double binary tree of N nodes as CSV",
		Long: "tree prints NCCL's double binary tree of N nodes: for each node, in both trees, the\n" +
			"node above it and the two below; -1 = none.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%d arguments; accepted: the number of nodes", len(args))
			}
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 || n > most {
				return usagef("%q nodes; accepted: 1 to %d", args[0], most)
			}
			return topo.WriteDoubleTree(cmd.OutOrStdout(), n)
		},
	}
}
