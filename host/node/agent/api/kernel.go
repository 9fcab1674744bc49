package api

import (
	"fmt"
)

// Connections are the numbers of connections of an IPVS real server.
type Connections struct {
	Active   int `json:"active"`
	Inactive int `json:"inactive"`
}

func (c *Connections) String() string {
	return fmt.Sprintf("%d active, %d inactive", c.Active, c.Inactive)
}
