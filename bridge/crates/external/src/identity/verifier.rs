//! Signatures of JWTs, verified by ring. Only algorithms with a public key are known, so that a token can never be
//! signed with what everybody can read.

use jsonwebtoken::Algorithm;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::DecodingKeyKind;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as BadSignature, Verifier};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// Makes ring the provider of this process. Repeated calls have no effect.
pub(super) fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(Error::from(ErrorKind::InvalidAlgorithm)),
        verifier_factory: |algorithm, key| {
            let verifier = RingVerifier::new(*algorithm, key);
            verifier.map(|verifier| Box::new(verifier) as Box<dyn JwtVerifier>)
        },
        key_utils: KeyUtils::new_unimplemented(),
    };
    // The same one was installed before if this fails.
    let _ = PROVIDER.install_default();
}

/// Algorithms that a setting can name.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    let algorithm = name.parse().ok()?;
    RingVerifier::method(algorithm).map(|_| algorithm)
}

enum Method {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

struct RingVerifier {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

impl RingVerifier {
    fn method(algorithm: Algorithm) -> Option<Method> {
        Some(match algorithm {
            Algorithm::RS256 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Method::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Method::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Method::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Method::Curve(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Method::Curve(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Method::Curve(&ED25519),
            _ => return None,
        })
    }

    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<Self, Error> {
        let method = Self::method(algorithm).ok_or(ErrorKind::InvalidAlgorithm)?;
        Ok(Self {
            algorithm,
            method,
            key: key.clone(),
        })
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), BadSignature> {
        let verified = match (&self.method, self.key.kind()) {
            (Method::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Method::Curve(method), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(*method, key).verify(message, signature)
            }
            (Method::Rsa(_), DecodingKeyKind::SecretOrDer(_))
            | (Method::Curve(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(BadSignature::new());
            }
        };
        verified.map_err(|_| BadSignature::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Validation, decode};
    use serde_json::{Map, Value};

    use super::*;

    /// Modulus of a key, and a token that openssl signed with it.
    const MODULUS: &str = "vHeuRQclYFIKnlkdWxD3UE_CcS3ZM_W77A7PEYXRS9FjrzR1NNKE4cRFKYT-Gpq2_1p25BrMXhrEkGzKV8nZpBsKtPmRCBhVOmag7qo-9oO9MjBAbmSF3_0bKP8NicV0HWbDSO9_sqzknISYPhDxdOfd969Qfi_iHus50_7jt_p2ZgVexFDAsttb-iD772_RfHRcRLU6MK7DuyY2zA02dV6nGM11rmYfFlnSIyeX8KSrElGM7Kj0Xs-3xp2sFEgO9BJH3Kk-oclLlf7AnLVYbZZ-wScxbkAwWvjWWrVi8TawL00U4U4u914apNa8SGEIMsJ_4Z_4zGhltLRSCmd3ow";
    const TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjoiYnJpZGdlIiwic3ViIjoiYW5uIiwiZXhwIjo0MTAyNDQ0ODAwfQ.CGqi4h7jssYE1Kn7ZT5MASNpdSA9Pglr9sppodbiM_YINE2pjuWuDJn6GEz_pJhhP06sym29XsXTOsMK5rVA-txPAOEB2U0lB8UIwy-8SywZriKVayhzr1j__8P77A-7HVzTh0j6SjE-k0slG7IU-1ORW738nesNQysOmr2-IP_jZVAo4p3S_Ql3-0HS5YeLd29E0XZUdqAzqLt6shATLJI4Rg80CFxd2uZmuJZqLKJyW-8sEDjfX66acvyo-yuIS97eC6ggDZ8xSaVDsJswZxoafdLV7Ty1_IO_uKYr-JLfOe2bqMBuELRd5m8dMu1xnYvWgjUATtNQxrYEwD4cmQ";

    #[test]
    fn a_token_that_openssl_signed_is_verified() {
        install();
        let key = DecodingKey::from_rsa_components(MODULUS, "AQAB").unwrap();
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_audience(&["bridge"]);
        let read = |token: &str| decode::<Map<String, Value>>(token, &key, &validation);
        assert_eq!(read(TOKEN).unwrap().claims["sub"], "ann");
        let (signed, signature) = TOKEN.rsplit_once('.').unwrap();
        let flipped: String = signature.chars().rev().collect();
        assert!(read(&format!("{signed}.{flipped}")).is_err());
    }

    #[test]
    fn only_algorithms_with_a_public_key_can_be_named() {
        for name in ["RS256", "PS512", "ES256", "EdDSA"] {
            assert!(algorithm(name).is_some(), "{name}");
        }
        for name in ["HS256", "none", "rs256", ""] {
            assert!(algorithm(name).is_none(), "{name}");
        }
    }
}
