// Package outcomes turns successive readings of connection counters into what plugins and metrics are told about each endpoint:
// attempts, answered, refused and unanswered connections in the last window and since the endpoint was first seen.
//
// It is pure: no I/O, no clock. Time is a parameter.
package outcomes
