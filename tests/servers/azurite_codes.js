// Loaded into Azurite before its own program: gives its answers the codes that Azure gives.
//
// Azurite calls a wrong signature AuthorizationFailure, which is Azure's word for its firewall; Azure says
// AuthenticationFailed, in the very words that Azurite puts beside its code.
// https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes
"use strict";

const { ServerResponse } = require("http");

const CODE = "x-ms-error-code";
const { writeHead } = ServerResponse.prototype;

ServerResponse.prototype.writeHead = function (status, ...rest) {
  if (this.getHeader(CODE) === "AuthorizationFailure" && /authenticate/.test(this.statusMessage)) {
    this.setHeader(CODE, "AuthenticationFailed");
  }
  return writeHead.call(this, status, ...rest);
};
