package testcluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Request is a request that the API server has completed or, for a watch, started.
type Request struct {
	User                         string
	Verb                         string // get, list, watch, create, …
	Group, Resource, Subresource string // Group "" is the core's
	Namespace, Name              string
	URI                          string
	Code                         int // of HTTP
}

// Requests returns the requests of the users in Options.Audit, oldest first.
func (c *Cluster) Requests() ([]Request, error) {
	f, err := os.Open(filepath.Join(c.dir, "audit.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb, RequestURI, Stage string
			User                    struct{ Username string }
			ObjectRef               struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			ResponseStatus          struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			break // the last line, half-written
		}
		if e.Verb == "watch" && e.Stage != "ResponseStarted" && e.ResponseStatus.Code < 300 {
			continue // its end
		}
		ref := e.ObjectRef
		out = append(out, Request{
			e.User.Username, e.Verb, ref.APIGroup, ref.Resource, ref.Subresource, ref.Namespace, ref.Name, e.RequestURI,
			e.ResponseStatus.Code,
		})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return out, nil
}
