package bootstrap

func runChild() bool { return false }
