// Package ipvs is the backend of mode ipvs. It programs the endpoints of a plan as destinations of IPVS virtual
// servers, and everything that IPVS cannot do as nftables rules, through package nftables. README.md describes the path of
// a connection.
package ipvs
