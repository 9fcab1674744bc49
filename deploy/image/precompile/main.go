// Command precompile compiles plugins for its own architecture into the entries of a folder, and prints what sluice needs to
// trust them: NAME:DIGEST of each, separated by commas. The command image builds it for the platforms of the image, and runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "precompile: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: precompile FOLDER MODULE...")
	}
	var pairs []string
	for _, file := range args[1:] {
		module, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pair, err := wasm.Precompile(ctx, args[0], module)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		pairs = append(pairs, pair)
	}
	fmt.Println(strings.Join(pairs, ","))
	return nil
}
