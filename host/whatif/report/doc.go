// Package report renders the result of a simulation as one HTML file that needs nothing else: no network, no other file.
package report
