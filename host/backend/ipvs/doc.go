// Package ipvs holds a plan in IPVS virtual servers, with a companion in nf_tables for what IPVS cannot do. README.md
// draws the way of a connection.
package ipvs
