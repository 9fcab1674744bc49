// Command referrers is the registry of go-containerregistry, which lists referrers by their API and keeps everything in memory.
// Its argument is the address.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	server := http.Server{Addr: os.Args[1], Handler: registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
